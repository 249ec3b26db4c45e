// The contributions to a run's shard that are staged or complete. Part of the ledger (ledger.h).
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/rounds.pb.h"
#include "server/frame_index.h"
#include "server/ledger_values.h"
#include "tensor/interval.h"

namespace cadre {

struct Contribution {
  v1::ContributionHeader header;
  // In the header's order, and the number of their positions.
  std::vector<Interval> spans;
  int64_t positions = 0;
  // Elements that are transferred: values, or those of a frame.
  int64_t elements = 0;
  uint32_t chunks = 0;
  uint32_t stored_chunks = 0;
  bool durable = false;
  uint64_t attempt = 0;
  std::shared_ptr<const FrameIndex> frame;
};

// Converts ranges of tensors, as they arrive in messages, to intervals of the parameter order, and
// drops empty ones. `tensor_begin` is that of RunTerms. Refuses ranges outside their tensor or
// outside `owned`, and too many ranges.
Decision<std::vector<Interval>> Flatten(
    const std::vector<int64_t>& tensor_begin, Interval owned,
    const google::protobuf::RepeatedPtrField<v1::Range>& ranges);
// Number of elements in all spans.
int64_t Elements(const std::vector<Interval>& spans);
// What a round exchanges of the shard, which has the positions `shard`.
std::vector<Interval> ExchangedOf(const RunTerms& terms, Interval shard, uint32_t fragment);
// The contribution that the header announces to this shard. Refuses one that no round accepts.
Decision<Contribution> ContributionOf(const RunTerms& terms, Interval shard,
                                      const v1::ContributionHeader& header);

class Contributions {
 public:
  // Null if there is none.
  Contribution* Find(const ContributionKey& key);
  const Contribution* Find(const ContributionKey& key) const;
  // Refuses a contribution with which the ranks of its generation would stage more than the shard.
  std::optional<Refused> CheckRoom(Interval shard, const ContributionKey& key,
                                   const Contribution& contribution) const;
  // Replaces one with the same key.
  Contribution& Put(const ContributionKey& key, Contribution contribution);
  void Erase(const ContributionKey& key) { contributions_.erase(key); }
  // Removes those that satisfy the condition; returns their keys.
  std::vector<ContributionKey> DropIf(
      const std::function<bool(const ContributionKey&, const Contribution&)>& condition);
  std::vector<ContributionKey> DropAll();
  // Elements that are stored of all contributions.
  int64_t StoredElements() const;
  // The participant's segments in order of positions, or the reason why they do not cover the
  // shard: a gap may still be filled, an overlap is a bug.
  std::variant<GroupSource, Incomplete, Refused> Cover(const RunTerms& terms, Interval shard,
                                                       const v1::Apply& apply,
                                                       const v1::Participant& participant) const;

 private:
  std::map<ContributionKey, Contribution> contributions_;
};

}  // namespace cadre
