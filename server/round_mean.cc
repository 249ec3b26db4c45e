// Applying a round reads every contribution once. Its CRCs were checked when it arrived, and the
// disk may have damaged it since, so they are checked again, but in the same pass: threads add up
// what they read (BlockScan), and whether it was undamaged is known when all of it has been read.
// Until then the version is a temporary file. If something is damaged, that file is dropped, and
// only then are all inputs read a second time, to name the one that is to blame: a contribution is
// reported as lost and staged again (shard_host.cc). Damage may have caused any other error before
// the end, for example in a decoder, so these are treated in the same way.
//
// The round is computed stretch by stretch (64 Ki positions) over all groups in group order, by
// several threads, each of which reads, checks, averages, updates and writes its own stretches. So
// several reads are under way, most of the work is done in the caches of a core, and memory does
// not grow with the size of the model or the number of files. A group's values for a stretch may
// lie in several contributions (one per rank) and several ranges of each. Equal inputs give equal
// bits with any number of threads: values depend on their own position alone or, if they are coded,
// on their unit, and the sums over positions are made for each stretch and then added in the order
// of stretches.
//
// The discrepancy (mean.h) needs the values of the previous version at the same positions, which
// are read as well. It is a statistic for the status: if the previous version is missing or
// damaged, the round is applied without it. An outer optimizer needs it, and its own states, which
// a file has for each version (shard_store.cc): without them the round cannot be applied.
//
// Coded rounds. Let y be the version that the groups have and r the residual, so that x = y + r is
// the exact model. The contributions are frames of the groups' changes of y; their mean is added to
// x, the outer optimizer updates x, and the frame of the round codes x - y. (Contributions in fp32
// are values: r is added to their mean, which is y and the mean change.) The version becomes y plus
// the decoded frame, which the groups compute in the same way, and the residual what the frame
// has left out. So nothing is lost but postponed, as in MCM (Philippenko and Dieuleveut, NeurIPS
// 2021). Statistics are exchanged as values, and have no residual. A frame is decoded from the
// beginning of every stretch (frame_index.h).
#include "server/round_mean.h"

#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/algorithm/container.h"
#include "base/status.h"
#include "base/weighted_sums.h"
#include "model/change_sums.h"
#include "model/frame.h"

namespace cadre {
namespace {

// Positions that are averaged over all groups before the next ones, so that their values, sums and
// means stay in the cache of a core.
constexpr int64_t kPart = 16 << 10;

std::span<char> AsBytes(std::span<float> values) {
  return {reinterpret_cast<char*>(values.data()), values.size_bytes()};
}

absl::string_view AsText(std::span<const float> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

absl::Status ReadBytes(BlockScan& file, uint64_t offset, bool again, std::span<char> bytes) {
  return again ? file.ReadAgain(offset, bytes) : file.Read(offset, bytes);
}

bool AreFinite(std::span<const float> values) {
  constexpr uint32_t kExponent = 0x7f800000;
  uint32_t not_finite = 0;
  for (const float value : values) {
    not_finite |= (std::bit_cast<uint32_t>(value) & kExponent) == kExponent ? 1U : 0U;
  }
  return not_finite == 0;
}

// Whether a difference of two such values, or the value itself, may not be finite.
bool AnyOverflows(std::span<const float> values) {
  constexpr uint32_t kMagnitude = 0x7fffffff;
  uint32_t largest = 0;
  for (const float value : values) {
    largest = std::max(largest, std::bit_cast<uint32_t>(value) & kMagnitude);
  }
  return largest >= std::bit_cast<uint32_t>(0x1p127F);
}

}  // namespace

RoundMean::RoundMean(const ApplyPlan& plan, Files files, std::unique_ptr<BlockScan> before,
                     RoundUpdate* update)
    : plan_(plan),
      files_(std::move(files)),
      update_(update),
      before_(requires_before() || plan.groups.size() > 1 ? std::move(before) : nullptr) {
  const bool measures = before_ != nullptr && plan.groups.size() > 1;
  if (measures) discrepancy_ = {0, 0};
  for (const GroupSource& group : plan.groups) weights_.push_back(group.weight);
  if (!screened()) return;
  const int groups = static_cast<int>(std::ssize(plan.groups));
  changes_ = before_ != nullptr ? NoChanges(groups) : UnknownChanges(groups);
}

absl::Status RoundMean::Read(const GroupSource& group, Interval positions, bool again,
                             Stretch& stretch) const {
  auto segment = std::partition_point(
      group.segments.begin(), group.segments.end(),
      [&](const SourceSegment& each) { return each.span.end <= positions.begin; });
  for (int64_t at = positions.begin; at < positions.end; ++segment) {
    const Interval part{at, std::min(segment->span.end, positions.end)};
    const std::span<float> out =
        std::span(stretch.group_).subspan(at - positions.begin, part.size());
    const Source& source = files_.at(segment->key);
    if (coded()) {
      CADRE_RETURN_IF_ERROR(ReadFrame(source, part, again, out, &stretch.frame_bytes_));
    } else {
      const int64_t offset = segment->offset + (at - segment->span.begin);
      CADRE_RETURN_IF_ERROR(ReadBytes(*source.file, offset * sizeof(float), again, AsBytes(out)));
    }
    at = part.end;
  }
  return absl::OkStatus();
}

absl::Status RoundMean::ReadFrame(const Source& source, Interval positions, bool again,
                                  std::span<float> out, std::string* bytes) const {
  const Interval part = source.frame->BytesOf(positions);
  bytes->resize(part.size());
  CADRE_RETURN_IF_ERROR(ReadBytes(*source.file, part.begin, again, *bytes));
  return DecodeFrame(plan_.units->In(positions), CodecOf(plan_.order.up()), *bytes, out);
}

absl::Status RoundMean::ReadBefore(Interval positions, Stretch& stretch) const {
  stretch.before_.resize(positions.size());
  stretch.before_status_ =
      before_->Read((positions.begin - plan_.span.begin) * sizeof(float), AsBytes(stretch.before_));
  ClearStatistics(positions, stretch.before_);
  return requires_before() ? stretch.before_status_ : absl::OkStatus();
}

template <typename Use>
void RoundMean::ForEachStatistic(Interval positions, const Use& use) const {
  const std::vector<Interval>& statistics = plan_.statistics;
  auto statistic =
      std::lower_bound(statistics.begin(), statistics.end(), positions.begin,
                       [](const Interval& s, int64_t position) { return s.end <= position; });
  for (; statistic != statistics.end() && statistic->begin < positions.end; ++statistic) {
    const Interval part = Intersect(*statistic, positions);
    use(Interval{part.begin - positions.begin, part.end - positions.begin});
  }
}

template <typename Use>
void RoundMean::ForEachTrained(Interval positions, const Use& use) const {
  int64_t begin = 0;
  ForEachStatistic(positions, [&](Interval statistic) {
    if (begin < statistic.begin) use(Interval{begin, statistic.begin});
    begin = statistic.end;
  });
  if (begin < positions.size()) use(Interval{begin, positions.size()});
}

void RoundMean::ClearStatistics(Interval positions, std::span<float> values) const {
  ForEachStatistic(positions, [&](Interval part) {
    std::fill_n(values.begin() + part.begin, part.size(), 0.0F);
  });
}

absl::Status RoundMean::Keep(Interval positions, Stretch& stretch) const {
  stretch.discrepancy_ = {0, 0};
  stretch.changes_.Clear();
  stretch.outer_.Clear();
  stretch.residual_.Clear();
  stretch.frame_.clear();
  stretch.words_.clear();
  CADRE_RETURN_IF_ERROR(before_->Read((positions.begin - plan_.span.begin) * sizeof(float),
                                      AsBytes(stretch.values_)));
  if (update_ == nullptr) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(ReadStates(positions, /*again=*/false, stretch));
  return WriteStates(positions, stretch);
}

absl::Status RoundMean::ReadStates(Interval positions, bool again, Stretch& stretch) const {
  stretch.states_.assign(update_->number_of_states() * positions.size(), 0);
  if (update_->before == nullptr) return absl::OkStatus();
  return ReadBytes(*update_->before, OffsetOfStates(positions), again, AsBytes(stretch.states_));
}

absl::Status RoundMean::WriteStates(Interval positions, const Stretch& stretch) const {
  if (update_->states == nullptr) return absl::OkStatus();
  return update_->states->Write(OffsetOfStates(positions), AsText(stretch.states_));
}

absl::Status RoundMean::Compute(Interval positions, Stretch& stretch) const {
  stretch.values_.resize(positions.size());
  const auto exchanged = std::partition_point(
      plan_.exchanged.begin(), plan_.exchanged.end(),
      [&](const Interval& interval) { return interval.end <= positions.begin; });
  if (exchanged == plan_.exchanged.end() || !exchanged->contains(positions)) {
    return Keep(positions, stretch);
  }
  stretch.discrepancy_ = {0, 0};
  if (screened()) stretch.changes_ = NoChanges(static_cast<int>(std::ssize(plan_.groups)));
  if (before_ != nullptr) CADRE_RETURN_IF_ERROR(ReadBefore(positions, stretch));
  // Frames are indexed by stretches.
  const int64_t part_size = coded() ? positions.size() : kPart;
  for (int64_t at = positions.begin; at < positions.end; at += part_size) {
    const Interval part{at, std::min(at + part_size, positions.end)};
    CADRE_RETURN_IF_ERROR(Average(part, at - positions.begin, stretch));
  }
  if (update_ != nullptr) return Update(positions, stretch);
  if (!coded()) return absl::OkStatus();
  AddWeighted(1, stretch.before_, stretch.values_);
  const bool overflows = screened() && AnyOverflows(stretch.values_);
  return overflows ? NoteOverflow(positions, stretch.before_, stretch) : absl::OkStatus();
}

absl::Status RoundMean::Average(Interval part, int64_t offset, Stretch& stretch) const {
  const size_t n = part.size();
  const std::span<float> values = std::span(stretch.values_).subspan(offset, n);
  std::span<const float> before;
  const bool measured =
      before_ != nullptr && stretch.before_status_.ok() && (plan_.groups.size() > 1 || screened());
  if (measured) {
    before = std::span(stretch.before_).subspan(offset, n);
    stretch.sums_.Begin(before);
    if (screened()) stretch.block_changes_.Begin(before, weights_);
  }
  // Values that are not finite make the sum of the squares so, unless they are statistics.
  bool is_finite = measured && plan_.statistics.empty();
  stretch.group_.resize(n);
  stretch.groups_.clear();
  for (const GroupSource& group : plan_.groups) {
    CADRE_RETURN_IF_ERROR(Read(group, part, /*again=*/false, stretch));
    Clip(group, part, before, stretch.group_);
    if (plan_.order.trim() > 0 && !AreFinite(stretch.group_)) {
      NoteNotFinite(static_cast<int>(&group - plan_.groups.data()), before, stretch.group_,
                    stretch);
    }
    AddToMean(group, values, stretch);
    if (measured) is_finite &= std::isfinite(Measure(group, part, before, stretch));
  }
  if (plan_.order.trim() > 0) {
    TrimmedMean(weights_, plan_.order.trim(), stretch.groups_, values);
  }
  if (measured && plan_.groups.size() > 1) stretch.discrepancy_ += stretch.sums_.End();
  if (measured && screened()) stretch.block_changes_.End(stretch.changes_);
  if (!screened() || is_finite) return absl::OkStatus();
  return FindNotFinite(part, before, values, stretch);
}

void RoundMean::AddToMean(const GroupSource& group, std::span<float> mean, Stretch& stretch) const {
  if (plan_.order.trim() > 0) {
    stretch.groups_.insert(stretch.groups_.end(), stretch.group_.begin(), stretch.group_.end());
  } else if (&group == &plan_.groups.front()) {
    SetWeighted(group.weight, stretch.group_, mean);
  } else {
    AddWeighted(group.weight, stretch.group_, mean);
  }
}

double RoundMean::Measure(const GroupSource& group, Interval part, std::span<const float> before,
                          Stretch& stretch) const {
  ClearStatistics(part, stretch.group_);
  if (coded()) AddWeighted(1, before, stretch.group_);
  const double squared = stretch.sums_.Add(group.weight, stretch.group_);
  if (screened()) stretch.block_changes_.Add(stretch.group_, squared);
  return squared;
}

void RoundMean::Clip(const GroupSource& group, Interval part, std::span<const float> before,
                     std::span<float> values) const {
  if (group.scale == 1) return;
  const bool changes = coded();
  ForEachTrained(part, [&](Interval trained) {
    for (int64_t i = trained.begin; i < trained.end; ++i) {
      const float from = changes ? 0 : before[i];
      values[i] = from + group.scale * (values[i] - from);
    }
  });
}

absl::Status RoundMean::FindNotFinite(Interval part, std::span<const float> before,
                                      std::span<float> mean, Stretch& stretch) const {
  if (AreFinite(mean)) return absl::OkStatus();
  for (size_t i = 0; i < plan_.groups.size(); ++i) {
    CADRE_RETURN_IF_ERROR(Read(plan_.groups[i], part, /*again=*/true, stretch));
    if (AreFinite(stretch.group_)) continue;
    NoteNotFinite(static_cast<int>(i), before, mean, stretch);
  }
  return absl::OkStatus();
}

void RoundMean::NoteNotFinite(int group, std::span<const float> before, std::span<float> values,
                              Stretch& stretch) const {
  if (screened()) {
    stretch.changes_.set_squared(group, std::numeric_limits<double>::infinity());
  }
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) values[i] = before.empty() || coded() ? 0 : before[i];
  }
}

absl::Status RoundMean::NoteOverflow(Interval positions, std::span<const float> before,
                                     Stretch& stretch) const {
  stretch.group_.resize(positions.size());
  int largest_group = 0;
  float largest = -1;
  for (size_t i = 0; i < plan_.groups.size(); ++i) {
    CADRE_RETURN_IF_ERROR(Read(plan_.groups[i], positions, /*again=*/true, stretch));
    for (const float value : stretch.group_) {
      if (!std::isfinite(value) || std::abs(value) <= largest) continue;
      largest = std::abs(value);
      largest_group = static_cast<int>(i);
    }
  }
  stretch.changes_.set_squared(largest_group, std::numeric_limits<double>::infinity());
  ForEachTrained(positions, [&](Interval part) {
    absl::c_copy(before.subspan(part.begin, part.size()), stretch.values_.begin() + part.begin);
  });
  stretch.outer_.Clear();
  return update_ == nullptr ? absl::OkStatus() : ReadStates(positions, /*again=*/true, stretch);
}

absl::Status RoundMean::Update(Interval positions, Stretch& stretch) const {
  const RoundUpdate& update = *update_;
  const size_t n = positions.size();
  CADRE_RETURN_IF_ERROR(ReadStates(positions, /*again=*/false, stretch));
  const std::span<float> states(stretch.states_);
  const std::span<float> residual = update.down ? states.last(n) : std::span<float>();
  // The exact model before the round; 0 for statistics.
  std::span<const float> exact = stretch.before_;
  if (update.down) {
    stretch.exact_ = stretch.before_;
    AddWeighted(1, residual, stretch.exact_);
    exact = stretch.exact_;
  }
  if (coded()) {
    AddWeighted(1, exact, stretch.values_);
  } else if (update.down) {
    AddWeighted(1, residual, stretch.values_);
  }
  if (update.outer) UpdateOuter(positions, exact, stretch);
  if (screened() && AnyOverflows(stretch.values_)) {
    CADRE_RETURN_IF_ERROR(NoteOverflow(positions, exact, stretch));
  }
  if (update.down) {
    AddChange(positions, stretch);
    CADRE_RETURN_IF_ERROR(Publish(positions, stretch, residual));
  }
  return WriteStates(positions, stretch);
}

void RoundMean::UpdateOuter(Interval positions, std::span<const float> before,
                            Stretch& stretch) const {
  const OuterUpdate& outer = *update_->outer;
  const std::span<float> values(stretch.values_);
  stretch.outer_.Clear();
  ForEachTrained(positions, [&](Interval part) {
    std::array<std::span<float>, 2> parts;
    for (int i = 0; i < outer.states(); ++i) {
      parts[i] = std::span(stretch.states_).subspan(i * values.size() + part.begin, part.size());
    }
    AddSums(outer.Update(before.subspan(part.begin, part.size()),
                         values.subspan(part.begin, part.size()), parts),
            stretch.outer_);
  });
}

void RoundMean::AddChange(Interval positions, Stretch& stretch) const {
  std::vector<float>& change = stretch.difference_;
  change.resize(stretch.values_.size());
  for (size_t i = 0; i < change.size(); ++i) change[i] = stretch.values_[i] - stretch.exact_[i];
  ClearStatistics(positions, change);
  double squared = 0;
  for (const float value : change) squared += double{value} * value;
  stretch.residual_.set_change_squared(squared);
}

absl::Status RoundMean::Publish(Interval positions, Stretch& stretch,
                                std::span<float> residual) const {
  const std::span<const ExchangeUnit> units = plan_.units->In(positions);
  const std::vector<float>& before = stretch.before_;
  std::vector<float>& values = stretch.values_;
  std::vector<float>& difference = stretch.difference_;
  difference.resize(values.size());
  // Statistics are values: `before` is 0 there.
  for (size_t i = 0; i < values.size(); ++i) difference[i] = values[i] - before[i];
  stretch.frame_.clear();
  stretch.words_.clear();
  CADRE_RETURN_IF_ERROR(
      EncodeFrame(units, *update_->down, difference, &stretch.frame_, &stretch.words_));
  CADRE_RETURN_IF_ERROR(DecodeFrame(units, *update_->down, stretch.frame_, std::span(difference)));
  double squared = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const float published = before[i] + difference[i];
    residual[i] = values[i] - published;
    values[i] = published;
    squared += double{residual[i]} * residual[i];
  }
  stretch.residual_.set_residual_squared(squared);
  return absl::OkStatus();
}

absl::Status RoundMean::Append(const Stretch& stretch) {
  if (!stretch.before_status_.ok() && !std::isnan(discrepancy_.displacement)) {
    LOG(WARNING) << "the discrepancy of the round is unknown: " << stretch.before_status_;
    ForgetStatistics();
  }
  discrepancy_ += stretch.discrepancy_;
  if (stretch.changes_.squared_size() > 0) AddChanges(stretch.changes_, changes_);
  if (update_ == nullptr) return absl::OkStatus();
  AddSums(stretch.outer_, update_->sums);
  if (!update_->down) return absl::OkStatus();
  v1::ResidualSums& sums = update_->residual;
  sums.set_change_squared(sums.change_squared() + stretch.residual_.change_squared());
  sums.set_residual_squared(sums.residual_squared() + stretch.residual_.residual_squared());
  update_->words.insert(update_->words.end(), stretch.words_.begin(), stretch.words_.end());
  const uint64_t offset =
      std::exchange(update_->frame_bytes, update_->frame_bytes + stretch.frame_.size());
  return update_->frame->Write(offset, stretch.frame_);
}

absl::Status RoundMean::Check() {
  for (const auto& [key, source] : files_) CADRE_RETURN_IF_ERROR(source.file->Check());
  if (update_ != nullptr && update_->before != nullptr) {
    CADRE_RETURN_IF_ERROR(update_->before->Check());
  }
  // What was not read whole cannot be checked.
  const bool known = requires_before() || !std::isnan(discrepancy_.displacement);
  if (before_ == nullptr || !known) return absl::OkStatus();
  const absl::Status status = before_->Check();
  if (status.ok() || requires_before()) return status;
  LOG(WARNING) << "the discrepancy of the round is unknown: " << status;
  ForgetStatistics();
  return absl::OkStatus();
}

// What is not finite is known without the version before.
void RoundMean::ForgetStatistics() {
  discrepancy_ = {};
  v1::ChangeSums unknown = UnknownChanges(changes_.squared_size());
  for (int i = 0; i < changes_.squared_size(); ++i) {
    if (std::isinf(changes_.squared(i))) unknown.set_squared(i, changes_.squared(i));
  }
  if (screened()) changes_ = std::move(unknown);
}

DiscrepancyTerms RoundMean::discrepancy() const { return discrepancy_; }

}  // namespace cadre
