// The values of a round's version: the mean of its contributions, read from their files block by
// block, or what the outer optimizer makes of it; and the discrepancy between the groups.
//
// Owns the open files. Thread-compatible. Uses memory for two blocks of values, one of doubles, and
// the blocks of the outer optimizer's states.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/codec/codec.h"
#include "model/exchange_units.h"
#include "server/block_file.h"
#include "server/client/frame.h"
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
  std::unique_ptr<VersionReader> before = nullptr;
  // Null without states.
  std::unique_ptr<BlockWriter> states = nullptr;
  // The frame of the version, and the words of its units; null without `down`.
  std::unique_ptr<BlockWriter> frame = nullptr;
  std::vector<uint16_t> words = {};
  // Over the exchanged values so far, with `down`.
  v1::ResidualSums residual = {};

  int outer_states() const { return outer ? outer->states() : 0; }
  int number_of_states() const { return outer_states() + (down ? 1 : 0); }
};

class RoundMean {
 public:
  using Files = std::map<ContributionKey, std::unique_ptr<BlockFile>>;

  // `before` reads the previous version; null if it cannot be read. `update`: null if the mean is
  // the version. Requires: `files` has every contribution of the plan, each verified; with `update`
  // or frames as contributions, `before` is not null; plan and `update` outlive this object.
  RoundMean(const ApplyPlan& plan, Files files, std::unique_ptr<VersionReader> before,
            RoundUpdate* update = nullptr);

  // Computes the version at the next out.size() positions. Requires: calls in order of positions,
  // for the stretches of StretchEnd, each of which the round exchanges as a whole or not at all.
  // Errors: those of the files.
  absl::Status Next(int64_t first, std::span<float> out);

  // Discrepancy of the trained positions so far. It is unknown in rounds of one group and if the
  // previous version cannot be read: a missing statistic does not fail the round.
  DiscrepancyTerms discrepancy() const;

 private:
  // Next position to read of one group.
  struct Group {
    const GroupSource* source = nullptr;
    size_t segment = 0;
    // Of contributions that are frames.
    std::map<ContributionKey, FrameReader> frames;
  };

  absl::Status Read(Group& group, int64_t first, std::span<float> out) const;
  absl::Status ReadFrames(Group& group, int64_t first, std::span<float> out) const;
  // Copies the version before, and its states.
  absl::Status Keep(int64_t first, std::span<float> out);
  absl::Status ReadStates(std::span<float> states);
  // Reads the previous version into before_; returns whether it is known. Errors: only if the round
  // requires it.
  absl::StatusOr<bool> ReadBefore(int64_t first, size_t size);
  // Reads the states of the next stretch, and writes the new ones.
  absl::Status Update(int64_t first, std::span<float> values);
  void UpdateOuter(int64_t first, std::span<const float> before, std::span<float> values,
                   std::span<float> states);
  // Adds the change of the exact model to the sums of the residual.
  void AddChange(int64_t first, std::span<const float> before, std::span<const float> values);
  // Codes what groups do not have of the exact model, and replaces it by the version that they will
  // have. `residual` receives the rest.
  absl::Status Publish(int64_t first, std::span<float> values, std::span<float> residual);

  // Calls `use` with the intervals of values, from `first` on, that are not trained, as offsets.
  template <typename Use>
  void ForEachStatistic(Interval positions, const Use& use) const;
  // Sets values that are not trained to 0, so that they add nothing to the discrepancy.
  void ClearStatistics(int64_t first, std::span<float> values) const;

  bool coded() const { return plan_.order.has_up() && !plan_.order.seed(); }
  // Whether the version is computed from the one before.
  bool needs_before() const { return update_ != nullptr || coded() || plan_.order.fragment() > 0; }

  const ApplyPlan& plan_;
  const Files files_;
  const std::vector<Interval> statistics_;
  std::vector<Group> groups_;
  // Null if the previous version is neither needed nor known.
  std::unique_ptr<VersionReader> reader_;
  RoundUpdate* const update_;
  int64_t states_read_ = 0;
  std::vector<float> values_;
  std::vector<float> before_;
  DiscrepancySums sums_;
};

// The end of the stretch of positions from `begin` on that a round is computed for at once: at most
// 64 Ki positions and, with units, whole ones; no end of an interval of `exchanged`, which are in
// order, is inside. Requires: begin < span.end, in the span.
int64_t StretchEnd(const ExchangeUnits* units, Interval span, std::span<const Interval> exchanged,
                   int64_t begin);

}  // namespace cadre
