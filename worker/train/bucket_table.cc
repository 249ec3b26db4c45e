#include "worker/train/bucket_table.h"

#include <utility>

#include "plan/plan_collectives.h"
#include "tensor/layout.h"

namespace cadre {
namespace {

BucketTable::Bucket MakeBucket(const Plan& plan, const ParameterIndex& index, const Bucket& bucket,
                               const BucketOwnership& ownership, bool whole) {
  BucketTable::Bucket made;
  made.first_layer = index[bucket.parameters.front()].layer;
  made.owner_axes = bucket.owner_axes();
  made.chunks = whole ? 1 : ChunksOf(plan, index, bucket);
  const int replicas = plan.mesh.Size(bucket.replica_axes);
  const int64_t owners = std::ssize(ownership.borders) - 1;
  for (int c = 0; c < made.chunks; ++c) {
    std::vector<Interval> gather;
    for (int64_t i = 0; i < owners; ++i) {
      const int64_t begin = ownership.borders[i];
      const int64_t size = ownership.borders[i + 1] - begin;
      gather.push_back(
          {begin + PartBegin(size, c, made.chunks), begin + PartBegin(size, c + 1, made.chunks)});
    }
    std::vector<Interval> reduce;
    for (int64_t i = ownership.own_slice % replicas; i < owners; i += replicas)
      reduce.push_back(gather[i]);
    made.mine.push_back(gather[ownership.own_slice]);
    made.gather.push_back(std::move(gather));
    made.reduce.push_back(std::move(reduce));
  }
  return made;
}

}  // namespace

BucketTable MakeBucketTable(const Plan& plan, const ParameterIndex& index,
                            const ParameterStore& parameters, bool whole) {
  BucketTable table;
  table.of_layer.resize(plan.layers.size());
  for (int b = 0; b < parameters.buckets(); ++b) {
    const Bucket& bucket = plan.buckets[b];
    table.buckets.push_back(MakeBucket(plan, index, bucket, parameters.ownership(b), whole));
    for (const int p : bucket.parameters) {
      std::vector<int>& of_layer = table.of_layer[index[p].layer];
      if (of_layer.empty() || of_layer.back() != b) of_layer.push_back(b);
    }
  }
  return table;
}

}  // namespace cadre
