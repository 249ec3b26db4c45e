// The values of a round's version: the mean of its contributions, read from their files, or what
// the outer optimizer makes of it; and the discrepancy between the groups.
//
//   RoundMean mean(plan, files, before, update);
//   each thread, for each stretch (server/stretches.h):   mean.Compute(positions, stretch)
//   for one stretch after another:                        mean.Append(stretch)
//   mean.Check()
//
// Owns the open files.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/codec/codec.h"
#include "model/exchange_units.h"
#include "server/block_changes.h"
#include "server/block_file.h"
#include "server/frame_index.h"
#include "server/ledger.h"
#include "server/mean.h"
#include "server/outer_update.h"

namespace cadre {

// What a round does beyond averaging. Its states are, for each stretch of positions, the values of
// state 0, of state 1 and so on: those of the outer optimizer, then, with `down`, the residual:
// what the frames so far have left out of the exact model, which is version + residual.
struct RoundUpdate {
  std::optional<OuterUpdate> outer = std::nullopt;
  std::optional<Codec> down = std::nullopt;
  // The states after the previous round; null: zeros.
  std::unique_ptr<BlockScan> before = nullptr;
  // Null without states.
  std::unique_ptr<BlockWriter> states = nullptr;
  // The frame of the version, its bytes so far, and the words of its units; null without `down`.
  std::unique_ptr<BlockWriter> frame = nullptr;
  uint64_t frame_bytes = 0;
  std::vector<uint16_t> words = {};
  v1::OuterSums sums = {};
  // Over the exchanged values, with `down`.
  v1::ResidualSums residual = {};

  int outer_states() const { return outer ? outer->states() : 0; }
  int number_of_states() const { return outer_states() + (down ? 1 : 0); }
};

class RoundMean {
 public:
  struct Source {
    std::unique_ptr<BlockScan> file;
    // The index of a frame, else null.
    std::shared_ptr<const FrameIndex> frame;
  };
  using Files = std::map<ContributionKey, Source>;

  // What a thread computes of a stretch, and the memory for it, which is used again for the next: 8
  // bytes of doubles and about five values, with an outer optimizer or codes up to ten, for each of
  // the at most 64 Ki positions.
  class Stretch {
   public:
    // The values of the version.
    std::span<const float> values() const { return values_; }

   private:
    friend class RoundMean;

    std::vector<float> values_;
    // The contribution of one group; those of all groups, if the mean is trimmed.
    std::vector<float> group_;
    std::vector<float> groups_;
    std::string frame_bytes_;
    // The values of the version before; 0 for statistics.
    std::vector<float> before_;
    // Whether the version before could be read.
    absl::Status before_status_;
    // The exact model before the round, and the difference that is published.
    std::vector<float> exact_;
    std::vector<float> difference_;
    std::vector<float> states_;
    // Codes of the stretch.
    std::string frame_;
    std::vector<uint16_t> words_;
    DiscrepancySums sums_;
    DiscrepancyTerms discrepancy_;
    BlockChanges block_changes_;
    v1::ChangeSums changes_;
    v1::OuterSums outer_;
    v1::ResidualSums residual_;
  };

  // `before`: the file of the previous version, of the plan's positions; null if it cannot be read.
  // `update`: null if the mean is the version. Requires: `files` has every contribution of the
  // plan; with `update` or frames as contributions, `before` is not null; plan and `update` outlive
  // this object.
  RoundMean(const ApplyPlan& plan, Files files, std::unique_ptr<BlockScan> before,
            RoundUpdate* update = nullptr);

  // Computes the version at the positions of a stretch, and writes its states; where the round has
  // exchanged nothing, both are those of the version before. Thread-safe. Errors:
  // those of the files; others, too, if their bytes are damaged, which Check finds.
  absl::Status Compute(Interval positions, Stretch& stretch) const;
  // Adds up the sums, and writes the frame. Requires: once for each stretch, in order.
  absl::Status Append(const Stretch& stretch);
  // DataLoss naming the file if anything that was read is damaged. Requires: all stretches are
  // appended.
  absl::Status Check();

  // Discrepancy of the trained positions. It is unknown in rounds of one group and if the previous
  // version cannot be read: a missing statistic does not fail the round.
  DiscrepancyTerms discrepancy() const;
  // How the changes of the groups compare. Empty unless the order is screened; unknown like the
  // discrepancy, except for whether contributions are finite.
  const v1::ChangeSums& changes() const { return changes_; }

 private:
  // Averages the groups at positions of a stretch, from its position `offset` on.
  absl::Status Average(Interval part, int64_t offset, Stretch& stretch) const;
  // Adds the contribution that the stretch has read of a group to the mean.
  void AddToMean(const GroupSource& group, std::span<float> mean, Stretch& stretch) const;
  // Adds it to the statistics. Returns the sum of the squares of its changes.
  double Measure(const GroupSource& group, Interval part, std::span<const float> before,
                 Stretch& stretch) const;
  // Scales the change of a group that is clipped.
  void Clip(const GroupSource& group, Interval part, std::span<const float> before,
            std::span<float> values) const;
  // Notes the groups that have values that are not finite, if the mean has any: the order will be
  // repeated without them.
  absl::Status FindNotFinite(Interval part, std::span<const float> before, std::span<float> mean,
                             Stretch& stretch) const;
  // The group has values that are not finite; of `values`, these become those before.
  void NoteNotFinite(int group, std::span<const float> before, std::span<float> values,
                     Stretch& stretch) const;
  // What the round makes of the contributions overflows: notes the group with the largest value,
  // without which the order will be repeated, and keeps values and states as they were.
  absl::Status NoteOverflow(Interval positions, std::span<const float> before,
                            Stretch& stretch) const;
  // Reads the values of one group, or decodes its frames. `again`: it has read them before.
  absl::Status Read(const GroupSource& group, Interval positions, bool again,
                    Stretch& stretch) const;
  absl::Status ReadFrame(const Source& source, Interval positions, bool again, std::span<float> out,
                         std::string* bytes) const;
  // Reads the previous version, if it is used.
  absl::Status ReadBefore(Interval positions, Stretch& stretch) const;
  absl::Status Keep(Interval positions, Stretch& stretch) const;
  absl::Status ReadStates(Interval positions, bool again, Stretch& stretch) const;
  absl::Status WriteStates(Interval positions, const Stretch& stretch) const;
  // Reads the states of the stretch, and writes the new ones.
  absl::Status Update(Interval positions, Stretch& stretch) const;
  void UpdateOuter(Interval positions, std::span<const float> before, Stretch& stretch) const;
  // Adds the change of the exact model to the sums of the residual.
  void AddChange(Interval positions, Stretch& stretch) const;
  // Codes what groups do not have of the exact model, and replaces it by the version that they will
  // have. `residual` receives the rest.
  absl::Status Publish(Interval positions, Stretch& stretch, std::span<float> residual) const;

  // Calls `use` with the intervals of values that are not trained, or are, as offsets.
  template <typename Use>
  void ForEachStatistic(Interval positions, const Use& use) const;
  template <typename Use>
  void ForEachTrained(Interval positions, const Use& use) const;
  // Sets values that are not trained to 0, so that they add nothing to the discrepancy.
  void ClearStatistics(Interval positions, std::span<float> values) const;

  bool coded() const { return plan_.order.has_up() && !plan_.order.seed(); }
  // The version before cannot be read.
  void ForgetStatistics();

  bool screened() const { return plan_.order.attempt() > 0; }
  bool requires_before() const { return update_ != nullptr || RequiresBefore(plan_.order); }
  uint64_t OffsetOfStates(Interval positions) const {
    return (positions.begin - plan_.span.begin) * update_->number_of_states() * sizeof(float);
  }

  const ApplyPlan& plan_;
  const Files files_;
  RoundUpdate* const update_;
  // Null if the previous version is neither needed nor known.
  const std::unique_ptr<BlockScan> before_;
  std::vector<float> weights_;
  DiscrepancyTerms discrepancy_;
  v1::ChangeSums changes_;
};

}  // namespace cadre
