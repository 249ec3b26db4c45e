#include "worker/train/bucket_parts.h"

#include <utility>

#include "spec/plan_collectives.h"
#include "tensor/layout.h"

namespace cadre {
namespace {

// Chunk `chunk` of `chunks` of elements [begin, end).
Piece Chunk(int64_t begin, int64_t end, int chunk, int chunks) {
  return {begin + PartBegin(end - begin, chunk, chunks),
          begin + PartBegin(end - begin, chunk + 1, chunks)};
}

BucketParts PartsOf(const Plan& plan, const ParameterIndex& index, const Bucket& bucket,
                    const BucketOwnership& ownership, bool whole) {
  BucketParts made;
  made.first_layer = index[bucket.parameters.front()].layer;
  made.owners = bucket.axes;
  made.owners.insert(made.owners.end(), bucket.same.begin(), bucket.same.end());
  made.chunks = whole ? 1 : ChunksOf(plan, index, bucket);
  const int same = plan.mesh.Size(bucket.same);
  const auto owners = static_cast<int>(ownership.borders.size()) - 1;
  for (int c = 0; c < made.chunks; ++c) {
    std::vector<Piece> gather;
    for (int i = 0; i < owners; ++i) {
      const auto at = static_cast<size_t>(i);
      gather.push_back(Chunk(ownership.borders[at], ownership.borders[at + 1], c, made.chunks));
    }
    // Ranks along `same` hold equal gradients, so each sums what it will own, and no more.
    std::vector<Piece> reduce;
    for (int i = ownership.mine % same; i < owners; i += same) {
      reduce.push_back(gather[static_cast<size_t>(i)]);
    }
    made.mine.push_back(gather[static_cast<size_t>(ownership.mine)]);
    made.gather.push_back(std::move(gather));
    made.reduce.push_back(std::move(reduce));
  }
  return made;
}

}  // namespace

BucketTable BucketTableOf(const Plan& plan, const ParameterIndex& index,
                          const ParameterStore& parameters, bool whole) {
  BucketTable table;
  table.of_layer.resize(plan.layers.size());
  for (int b = 0; b < parameters.buckets(); ++b) {
    const Bucket& bucket = plan.buckets[static_cast<size_t>(b)];
    table.buckets.push_back(PartsOf(plan, index, bucket, parameters.ownership(b), whole));
    for (const int p : bucket.parameters) {
      std::vector<int>& of_layer = table.of_layer[static_cast<size_t>(index[p].layer)];
      if (of_layer.empty() || of_layer.back() != b) of_layer.push_back(b);
    }
  }
  for (const std::vector<int>& of_layer : table.of_layer) {
    for (const int b : of_layer) ++table.buckets[static_cast<size_t>(b)].layers;
  }
  return table;
}

}  // namespace cadre
