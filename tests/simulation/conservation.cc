#include "tests/simulation/conservation.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "model/coding.h"
#include "model/frame.h"
#include "server/ledger.h"
#include "tests/simulation/describe.h"

namespace cadre::simulation {
namespace {

bool KeepsChanges(const v1::Averaging& averaging) {
  return averaging.has_staleness() || CodingOf(averaging.up()).has_value();
}

bool Equal(float a, float b) { return std::abs(a - b) <= 1e-4F * (1 + std::abs(b)); }

template <typename Use>
void ForEach(const std::vector<Interval>& intervals, const Use& use) {
  for (const Interval& interval : intervals) {
    for (int64_t p = interval.begin; p < interval.end; ++p) use(p);
  }
}

bool LeavesOut(const v1::ScreenedChange& screened, const Conservation::Kept& kept) {
  return screened.scale() == 0 && screened.round() == kept.round && kept.round > 0 &&
         screened.generation() == kept.generation;
}

// Its change includes that of an earlier one that was late.
std::shared_ptr<const Conservation::Kept> AsLate(Conservation::Kept kept) {
  kept.late = nullptr;
  return std::make_shared<const Conservation::Kept>(std::move(kept));
}

}  // namespace

// ---- What survives generations

Conservation::Key Conservation::KeyOf(const v1::Assignment& assignment) {
  return {assignment.lineage(), assignment.branch(), assignment.place().group()};
}

void Conservation::Enter(const v1::Assignment& assignment) {
  const std::string& address = assignment.peers(static_cast<int>(assignment.place().rank()));
  const Key key = KeyOf(assignment);
  const auto [before, is_new] = entered_.try_emplace(address, key);
  if (is_new || std::exchange(before->second, key) == key) return;
  for (auto& [other, group] : groups_) {
    if (other != key && group.holders.contains(address)) group.lost = true;
  }
}

void Conservation::OnStart(const v1::Start& start) {
  if (start.place().rank() == 0) starts_.try_emplace(start.place().generation(), start);
}

Expected Conservation::Restore(const v1::Assignment& assignment,
                               const std::vector<Interval>& spans) {
  const v1::RankSlot& place = assignment.place();
  const v1::Start& start = starts_[place.generation()];
  const uint32_t version = start.version();
  Group& group = groups_[KeyOf(assignment)];
  const std::set<std::string> peers(assignment.peers().begin(), assignment.peers().end());
  if (std::exchange(group.generation, place.generation()) != place.generation()) {
    group.restored.clear();
  }
  const bool present = !group.lost && absl::c_all_of(group.holders, [&](const auto& holder) {
    return peers.contains(holder);
  });
  Expected carried(TensorBegins(assignment.spec()).back());
  ForEach(spans, [&](int64_t p) {
    Kept& kept = group.positions[p];
    // A contribution that the run does not have has carried nothing over.
    if (!kept.settled && kept.round > version && kept.late != nullptr) kept = Kept(*kept.late);
    const v1::IncludedContribution& in = start.included();
    const bool included = in.round() == kept.round && in.generation() == kept.generation;
    const bool screened = LeavesOut(start.screened(), kept);
    const bool later = kept.round > version;
    std::optional<float>& value = carried[p];
    // The ranks may know what a coordinator has decided whose record is lost.
    const bool contradicted =
        !kept.settled && !screened && screened_.contains({kept.generation, kept.round});
    // Older snapshots may have it, or the contribution may have been kept by some ranks only.
    const bool known =
        later ? !kept.settled
              : !contradicted && (in.round() <= kept.round || (kept.settled && kept.round == 0));
    const bool complete =
        kept.settled || later || contributed_.contains({kept.generation, kept.round});
    const bool repeated = !kept.settled && !later && !included && in.round() == kept.round;
    const v1::Averaging& averaging = assignment.spec().averaging();
    std::shared_ptr<const Kept> late;
    if (kept.is_change() && !later && !included && !screened) {
      late = AsLate(kept);
    } else if (!kept.is_change()) {
      late = kept.late;
    }
    if (version == 0) {
      value = 0;
    } else if (present && known && complete && !repeated) {
      value = later ? kept.carried
              : late != nullptr
                  ? Settle(averaging, *late, version, /*included=*/false, /*screened=*/false)
                  : Settle(averaging, kept, version, included, screened);
    }
    // A late change is weighted again by each generation that starts with it.
    if (version == 0 || !value.has_value()) late = nullptr;
    kept = {.round = version, .generation = place.generation(), .carried = value, .late = late};
  });
  group.holders.insert(peers.begin(), peers.end());
  group.restored.insert(place.rank());
  if (group.restored.size() == peers.size()) {
    group.holders = peers;
    group.lost = false;
  }
  return carried;
}

void Conservation::Keep(const v1::Assignment& assignment, int64_t position, const Kept& kept) {
  Kept& before = groups_[KeyOf(assignment)].positions[position];
  Kept after = kept;
  const bool same = before.round == kept.round && before.generation == kept.generation;
  if (!before.is_change()) {
    after.late = before.late;
  } else if (!same) {
    after.late = AsLate(before);
  }
  before = std::move(after);
}

std::optional<float> Conservation::Settle(const v1::Averaging& averaging, const Kept& kept,
                                          uint32_t version, bool included, bool screened) {
  if (kept.settled || !kept.exchanged || !KeepsChanges(averaging)) return kept.carried;
  if (screened) return 0;
  const auto up = CodingOf(averaging.up());
  if (included && !up) return 0;
  const std::optional<float> value = included ? kept.left_out : kept.change;
  float factor = up ? up->error_feedback() : 0.5F;
  if (!included && averaging.has_staleness()) {
    const v1::Staleness& staleness = averaging.staleness();
    if (staleness.has_weight()) factor = staleness.weight();
    if (version + 1 > kept.round + staleness.max_rounds()) factor = 0;
  }
  const uint32_t late = included ? 1 : version + 1 - std::min(version + 1, kept.round);
  factor = std::pow(factor, static_cast<float>(late));
  if (factor == 0) return 0;
  return value.has_value() ? std::optional(factor * *value) : std::nullopt;
}

void Conservation::Expect(const v1::RankSlot& place, uint32_t round, Expected expected) {
  expected_[{place.run(), place.generation(), place.rank(), round}] = std::move(expected);
}

void Conservation::OnContributed(const v1::Contributed& contributed) {
  contributed_.emplace(contributed.place().generation(), contributed.round());
}

void Conservation::OnDecision(const v1::Decision& decision) {
  if (decision.refusal() != v1::REFUSAL_SCREENED) return;
  screened_.emplace(decision.place().generation(), decision.round());
}

void Conservation::Check(const v1::ContributionHeader& header,
                         const std::vector<Interval>& positions, const Values& values) {
  const auto found =
      expected_.find({header.run(), header.generation(), header.rank(), header.round()});
  if (found == expected_.end()) return;
  ForEach(positions, [&](int64_t p) {
    const std::optional<float> expected = found->second[p];
    world_.Count(expected.has_value() ? "changes_checked" : "changes_not_known");
    if (!expected.has_value() || Equal(values[p], *expected)) return;
    world_.Violate(ContributionKey::Of(header).ToString(), " has ", values[p], " at ", p, ", but ",
                   *expected, " follows from what its group has trained and carries");
  });
}

// ---- A rank

RankChanges::RankChanges(World& world, Conservation& conservation, const v1::Assignment& assignment,
                         std::vector<Interval> spans)
    : world_(world),
      conservation_(conservation),
      assignment_(assignment),
      spans_(std::move(spans)),
      carried_(TensorBegins(assignment.spec()).back()) {}

void RankChanges::OnRestored() {
  if (!std::exchange(restored_, true)) carried_ = conservation_.Restore(assignment_, spans_);
}

void RankChanges::OnHeld(uint32_t version, const v1::Decision& decision, const Values& values) {
  merged_ = Merged(version, values);
  base_ = live_ = values;
  if (!staged_.has_value()) return;
  for (auto& [p, kept] : staged_->kept) {
    carried_[p] = Conservation::Settle(averaging(), kept, version, decision.included(),
                                       decision.refusal() == v1::REFUSAL_SCREENED);
    // A late change is weighted again by each generation that starts with it.
    const bool is_late = !decision.included() && decision.refusal() != v1::REFUSAL_SCREENED;
    if (!is_late || !kept.exchanged) {
      kept = {.round = kept.round, .generation = kept.generation, .carried = carried_[p]};
    }
    conservation_.Keep(assignment_, p, kept);
  }
  staged_.reset();
}

Values RankChanges::Merged(uint32_t version, const Values& values) const {
  if (!staged_.has_value()) return values;
  const v1::Overlap& overlap = averaging().overlap();
  const bool has_rest = staged_->fragment > 0 && version == staged_->round;
  Values merged = values;
  ForEach(spans_, [&](int64_t p) {
    if (!staged_->kept.at(p).exchanged) {
      if (has_rest) merged[p] = live_[p];
    } else if (overlap.steps() > 0) {
      merged[p] += overlap.has_blend() ? overlap.blend() * (live_[p] - values[p])
                                       : live_[p] - staged_->values[p];
    }
  });
  return merged;
}

// Steps that a group has trained ahead may be discarded; then it continues from the version.
void RankChanges::OnStep(const Values& values) {
  if (!merged_.has_value()) return;
  const auto is = [&](const Values& expected) {
    bool same = true;
    ForEach(spans_, [&](int64_t p) { same = same && Equal(values[p], expected[p]); });
    return same;
  };
  if (!is(*merged_) && !is(base_)) {
    world_.Violate(Describe(assignment_.place()), " continues with other values than those of the ",
                   "version and what it has trained since its contribution");
  }
  merged_.reset();
}

Values RankChanges::Decoded(const std::vector<Interval>& exchanged, const Values& change) const {
  const v1::RunSpec& spec = assignment_.spec();
  const auto up = CodingOf(averaging().up());
  if (!up.has_value()) return change;
  Values decoded(change.size());
  const auto units = UnitsOf(spec);
  for (int shard = 0; shard < assignment_.shards_size(); ++shard) {
    const std::vector<Interval> parts =
        PartsWithin(exchanged, SpanOfShard(spec, shard, assignment_.shards_size()));
    if (parts.empty()) continue;
    Values values;
    ForEach(parts, [&](int64_t p) { values.push_back(change[p]); });
    std::string frame;
    absl::Status coded = EncodeFrame(units->In(parts), CodecOf(*up), values, &frame);
    coded.Update(DecodeFrame(units->In(parts), CodecOf(*up), frame, &values));
    if (!coded.ok()) world_.Violate("a change cannot be coded: ", coded.ToString());
    size_t i = 0;
    ForEach(parts, [&](int64_t p) { decoded[p] = values[i++]; });
  }
  return decoded;
}

void RankChanges::OnStage(uint32_t round, uint32_t fragment, const Values& values) {
  if (base_.empty()) return;
  OnStep(values);
  const bool keeps = KeepsChanges(averaging());
  const bool codes = CodingOf(averaging().up()).has_value();
  std::vector<Interval> exchanged;
  for (const Interval& part : PositionsOf(assignment_.spec(), fragment)) {
    for (const Interval& own : PartsWithin(spans_, part)) exchanged.push_back(own);
  }
  staged_.emplace(Staged{.round = round, .fragment = fragment, .values = values});
  ForEach(spans_, [&](int64_t p) {
    staged_->kept[p] = {.round = round,
                        .generation = assignment_.place().generation(),
                        .settled = false,
                        .carried = carried_[p]};
  });
  Values change = values;
  bool known = true;
  ForEach(exchanged, [&](int64_t p) {
    known = known && carried_[p].has_value();
    change[p] = (values[p] - base_[p]) + carried_[p].value_or(0);
  });
  const Values decoded = Decoded(exchanged, change);
  Expected expected(values.size());
  ForEach(exchanged, [&](int64_t p) {
    Conservation::Kept& kept = staged_->kept[p];
    kept.exchanged = true;
    if (carried_[p].has_value()) kept.change = change[p];
    if (codes && known) {
      kept.left_out = change[p] - decoded[p];
      expected[p] = decoded[p];
    } else if (!codes && (carried_[p].has_value() || !keeps)) {
      expected[p] = values[p] + (keeps ? *carried_[p] : 0);
    }
  });
  for (const auto& [p, kept] : staged_->kept) conservation_.Keep(assignment_, p, kept);
  conservation_.Expect(assignment_.place(), round, std::move(expected));
}

}  // namespace cadre::simulation
