// The values that a rank exchanges with one shard: its contribution, the version that it has
// received, what it carries over to the next contribution, and what it merges. Computes and holds
// them; ShardExchange transfers them.
//
//   BeginContribution, MakeContribution -> Decide -> a version is received -> Adopt -> [Merge]
//
// In a run with coded contributions or versions, or with fragments (model/coding.h,
// ExchangesUnits), the owned values must be whole units. A coded contribution is a frame of the
// change since the version that the rank has adopted, plus what earlier frames have left out (error
// feedback): if a version includes the contribution, what this frame leaves out is carried over to
// the next one, otherwise the whole change. So is, in a run with Staleness, the change of values in
// fp32. A ContributionCoder codes and carries instead, if there is one.
//
// Borrows the form and the owned values. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "member/kept_change.h"
#include "member/owned.h"
#include "member/trainer_progress.h"
#include "model/coding.h"
#include "model/exchange_units.h"
#include "model/parameter_index.h"
#include "proto/cadre/v1/run.pb.h"
#include "server/client/shard_client.h"

namespace cadre {

// What the exchanges of a rank with all shards have in common.
struct ExchangeForm {
  // Borrowed. `units`: null unless ranks exchange whole units.
  const ParameterIndex& index;
  const ExchangeUnits* units = nullptr;
  v1::Averaging averaging;
  // Whether a ContributionCoder codes contributions.
  bool has_coder = false;
  // Nothing for values in fp32.
  std::optional<v1::Coding> up = CodingOf(averaging.up());
  std::optional<v1::Coding> down = CodingOf(averaging.down());
  uint32_t fragments = FragmentsOf(averaging);
  // Those that compute what is exchanged with one shard.
  int threads = 1;

  bool overlaps() const { return averaging.overlap().steps() > 0; }
  // Whether contributions have changes that may have to be carried, and are not the coder's.
  bool keeps_changes() const { return !has_coder && KeepsChanges(averaging); }
};

class ShardValues {
 public:
  // A change that no version includes, and its weight for the version that the rank has adopted.
  struct LateChange {
    Interval positions;
    uint32_t round = 0;
    float factor = 0;
  };
  struct Contribution {
    uint32_t round = 0;
    uint32_t fragment = 0;
    // What it has of the parts.
    std::vector<Owned> parts;
    // There is a change whose decision is not known.
    bool undecided = false;
    // The change was so many rounds late and was dropped; 0: it was not.
    uint32_t dropped = 0;
  };

  // `parts`: the owned values that the shard stores, in order of positions. All ranks of the group
  // together cover the shard; a single rank may have no part.
  ShardValues(const ExchangeForm& form, std::vector<Owned> parts);

  const std::vector<Owned>& parts() const { return parts_; }
  int64_t size() const { return size_; }
  // From the first part to the last one.
  Interval positions() const {
    if (parts_.empty()) return {};
    return {parts_.front().positions.begin, parts_.back().positions.end};
  }
  // The parts that a fragment has of those of the shard; 0: all.
  std::vector<Owned> PartsOf(uint32_t fragment) const;
  std::vector<ExchangeUnit> UnitsOf(const std::vector<Owned>& parts) const;
  // Bytes of the buffers once a version has been adopted after a contribution; an upper bound with
  // fragments. Then: those that they have now.
  int64_t ExpectedBytes() const;
  int64_t AllocatedBytes() const;

  // ---- Contributions
  // The last one; nothing: there is none since the last adoption.
  const std::optional<Contribution>& contribution() const { return contribution_; }
  // The contribution has the owned values. Copies them if they change before they are transferred.
  void BeginContribution(uint32_t round, uint32_t fragment);
  // Makes what a contribution transfers, if that depends on its change. Errors: those of the codec.
  absl::Status MakeContribution(TrainerProgress& progress);
  // The coder has the change, and this frame of it.
  void SetFrame(std::string frame);
  // What it transfers. Valid until Adopt.
  std::span<const std::byte> bytes() const;
  // Updates what is carried for a group that continues from `version`. The result has the share of
  // the change, for the coder; nothing: there was nothing to decide. Requires: the version to which
  // the change is relative has not been overwritten.
  std::optional<KeptShare> Decide(uint32_t version, bool included, bool screened,
                                  TrainerProgress& progress);

  // ---- Versions
  // The number of the version that was received last; nothing: there is none.
  const std::optional<uint32_t>& version_number() const { return version_number_; }
  const std::vector<float>& version() const { return version_; }
  // The owned values are those of version 0.
  void SetInitial();
  // The owned values, which may be copied to where the version will be. There is none until it is
  // set.
  std::span<const float> Contiguous();
  // Where the version is to be received. There is none until SetVersion.
  std::span<float> BeginVersion();
  void SetVersion(uint32_t number) { version_number_ = number; }
  // The next version has these values where the contribution has its own, and is otherwise the
  // same.
  void SetExchanged(std::span<const float> values);
  // Adds a frame to the version. DataLoss for a malformed frame; there is no version then.
  absl::Status AddFrame(const PulledFrame& frame, TrainerProgress& progress);
  // Overwrites the owned values with the version. Returns how many rounds late a change is that was
  // dropped for this reason; 0: none was.
  uint32_t Adopt();
  // Overwrites the owned values with what they and the version give (ShardExchange::Merge).
  void Merge();

  // ---- What is added to the change of the next contribution
  // As in ShardExchange.
  void CopyCarried(std::span<float> values, bool weighted) const;
  void SetCarried(std::span<const float> values, std::vector<LateChange> late);
  // By positions, which are disjoint.
  const std::vector<LateChange>& late() const { return late_; }
  bool undecided() const { return contribution_ && contribution_->undecided; }
  // As late(), with the change that is undecided as one that is late.
  std::vector<LateChange> Changes() const;
  // What follows from the last contribution where it has exchanged values: the change if no version
  // includes it and, if it is coded, what its frame leaves out if one does. Other values remain.
  // Requires: undecided; as Decide.
  void CopyUndecided(std::span<float> change, std::span<float> left_out,
                     TrainerProgress& progress) const;
  // Frees everything else. Requires: not undecided; nothing else is called afterwards.
  void KeepOnlyCarried();
  // Clears the values of statistics that the contribution has exchanged.
  void ClearStatistics(std::span<float> values) const;

 private:
  // Values of a part that are of one unit or, if ranks do not exchange units, at most as many of
  // one tensor.
  struct UnitSpan {
    ExchangeUnit unit;
    // The index of its first value among the contributed ones, and among those of all parts.
    int64_t i = 0;
    int64_t p = 0;
    std::span<float> owned;

    bool trained() const { return unit.kind != ExchangeUnit::Kind::kStatistic; }
    size_t size() const { return owned.size(); }
  };
  // What there is of `parts`, in order.
  std::vector<UnitSpan> UnitSpansOf(const std::vector<Owned>& parts) const;
  // Whether these values, in fp32, are transferred from where they are.
  bool ReadsOwned(const std::vector<Owned>& parts) const {
    return parts.size() == 1 && !form_.overlaps() && !form_.keeps_changes();
  }
  // The values of a span when the contribution was made.
  std::span<const float> ContributedIn(const UnitSpan& span) const;
  // What is carried of a span, with the weights of late changes.
  void CarriedIn(const UnitSpan& span, std::span<float> carried) const;
  // The change of a span; zeros for statistics.
  void ChangeOf(const UnitSpan& span, std::span<float> change) const;
  // Calls use(span, values) with what the frame has left out.
  template <typename Use>
  void ForEachLeftOut(const std::vector<UnitSpan>& spans, TrainerProgress& progress,
                      const Use& use) const;
  // What Merge stores.
  std::vector<float>& merged();
  // Computes it from the owned values, before they are overwritten.
  void PrepareMerge();

  const ExchangeForm& form_;
  const std::vector<Owned> parts_;
  int64_t size_ = 0;
  std::optional<Contribution> contribution_;
  std::optional<uint32_t> version_number_;

  // ---- Buffers, whose memory is used again
  // What a contribution transfers: in fp32 the exchanged values, unless they can be read where they
  // are (ReadsOwned), and otherwise a frame of their changes.
  std::vector<float> staged_;
  std::string frame_;
  // Where its pieces begin, and its end.
  std::vector<size_t> frame_offsets_;
  // The version with version_number_.
  std::vector<float> version_;
  // The exchanged values at the contribution, in a run with overlap that keeps changes: what is
  // staged is something else.
  std::vector<float> contributed_;
  // The values of all parts that Merge stores, in a run with fragments.
  std::vector<float> of_fragments_;
  // What earlier frames have left out, and late changes as they were contributed. Empty: zeros.
  // Unused with a coder.
  std::vector<float> carried_;
  // What of it has yet to be weighted.
  std::vector<LateChange> late_;
};

}  // namespace cadre
