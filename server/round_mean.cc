// Applying a round reads every contribution twice: VerifyContribution checks all CRCs first, then
// RoundMean reads the values without a check. One pass would be enough to compute the mean, but it
// would find damage while a version is being written, when values of other contributions are
// already in it: the version file would have to be discarded, and the damaged contribution be named
// from inside a loop over positions. Two passes separate the decision whether the round may be
// applied from the arithmetic. The second pass usually reads from the page cache, since the
// contributions were staged shortly before. It costs one sequential read of the shard per group,
// G * 4n/S bytes for G groups, n parameters and S shards.
//
// The mean is computed block by block (64 Ki positions) over all groups in group order, so memory
// does not grow with the size of the model or the number of files. A group's values for a block may
// lie in several contributions (one per rank) and several ranges of each. The plan's segments are
// sorted by position, and each group keeps the index of its current segment, so reading is one
// forward scan.
//
// The discrepancy (mean.h) needs the values of the previous version at the same positions, which
// are read as well. It is a statistic for the status: if the previous version is missing or
// damaged, the round is applied without it. An outer optimizer needs it, and its own states, which
// a file has for each version (shard_store.cc): without them the round cannot be applied.
//
// Coded rounds. Let y be the version that the groups have and r the residual, so that x = y + r is
// the exact model. The contributions are frames of the groups' changes of y; their mean is added to
// x, the outer optimizer updates x, and the frame of the round codes x - y. The version becomes y
// plus the decoded frame, which the groups compute in the same way, and the residual what the frame
// has left out. So nothing is lost but postponed, as in MCM (Philippenko and Dieuleveut, NeurIPS
// 2021). Statistics are exchanged as values, and have no residual.
#include "server/round_mean.h"

#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/crc32c.h"
#include "base/status.h"
#include "server/mean.h"

namespace cadre {
namespace {

constexpr int64_t kStretch = 64 << 10;

std::span<char> AsBytes(std::span<float> values) {
  return {reinterpret_cast<char*>(values.data()), values.size_bytes()};
}

absl::string_view AsText(std::span<const float> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

}  // namespace

int64_t StretchEnd(const ExchangeUnits* units, Interval span, std::span<const Interval> exchanged,
                   int64_t begin) {
  const auto after =
      std::upper_bound(exchanged.begin(), exchanged.end(), begin,
                       [](int64_t position, const Interval& i) { return position < i.end; });
  if (after != exchanged.end()) span.end = begin < after->begin ? after->begin : after->end;
  if (span.end - begin <= kStretch) return span.end;
  return units == nullptr ? begin + kStretch : units->BorderAfter(begin + kStretch - kUnitSize);
}

RoundMean::RoundMean(const ApplyPlan& plan, Files files, std::unique_ptr<VersionReader> before,
                     RoundUpdate* update)
    : plan_(plan), files_(std::move(files)), statistics_(plan.statistics), update_(update) {
  for (const GroupSource& source : plan.groups) groups_.push_back({.source = &source});
  const bool fits = before != nullptr && before->span() == plan.span;
  if (fits && (needs_before() || groups_.size() > 1)) reader_ = std::move(before);
}

absl::Status RoundMean::Read(Group& group, int64_t first, std::span<float> out) const {
  if (coded()) return ReadFrames(group, first, out);
  while (!out.empty()) {
    while (group.source->segments[group.segment].span.end <= first) ++group.segment;
    const SourceSegment& segment = group.source->segments[group.segment];
    const int64_t n = std::min(std::ssize(out), segment.span.end - first);
    const int64_t offset = segment.offset + (first - segment.span.begin);
    CADRE_RETURN_IF_ERROR(
        files_.at(segment.key)->ReadUnchecked(offset * sizeof(float), AsBytes(out.first(n))));
    first += n;
    out = out.subspan(n);
  }
  return absl::OkStatus();
}

absl::Status RoundMean::ReadFrames(Group& group, int64_t first, std::span<float> out) const {
  for (const ExchangeUnit& unit : plan_.units->In({first, first + std::ssize(out)})) {
    while (group.source->segments[group.segment].span.end <= unit.positions.begin) ++group.segment;
    const ContributionKey& key = group.source->segments[group.segment].key;
    const BlockFile& file = *files_.at(key);
    const auto [reader, is_new] =
        group.frames.try_emplace(key, CodecOf(plan_.order.up()), file.head().data_bytes,
                                 [&file](uint64_t offset, std::span<char> bytes) {
                                   return file.ReadUnchecked(offset, bytes);
                                 });
    const std::span<float> values =
        out.subspan(unit.positions.begin - first, unit.positions.size());
    CADRE_RETURN_IF_ERROR(reader->second.Next(unit, values));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> RoundMean::ReadBefore(int64_t first, size_t size) {
  if (reader_ == nullptr) return false;
  before_.resize(size);
  const absl::Status status = reader_->Read(first, AsBytes(before_));
  if (needs_before()) CADRE_RETURN_IF_ERROR(status);
  if (status.ok()) {
    ClearStatistics(first, before_);
    return true;
  }
  LOG(WARNING) << "the discrepancy of the round is unknown: " << status;
  reader_.reset();
  return false;
}

template <typename Use>
void RoundMean::ForEachStatistic(Interval positions, const Use& use) const {
  auto statistic =
      std::lower_bound(statistics_.begin(), statistics_.end(), positions.begin,
                       [](const Interval& s, int64_t position) { return s.end <= position; });
  for (; statistic != statistics_.end() && statistic->begin < positions.end; ++statistic) {
    const Interval part = Intersect(*statistic, positions);
    use(Interval{part.begin - positions.begin, part.end - positions.begin});
  }
}

void RoundMean::ClearStatistics(int64_t first, std::span<float> values) const {
  ForEachStatistic({first, first + std::ssize(values)}, [&](Interval part) {
    std::fill_n(values.begin() + part.begin, part.size(), 0.0F);
  });
}

absl::Status RoundMean::Keep(int64_t first, std::span<float> out) {
  CADRE_RETURN_IF_ERROR(reader_->Read(first, AsBytes(out)));
  if (update_ == nullptr || update_->states == nullptr) return absl::OkStatus();
  std::vector<float> states(update_->number_of_states() * out.size());
  CADRE_RETURN_IF_ERROR(ReadStates(states));
  return update_->states->Append(AsText(states));
}

absl::Status RoundMean::ReadStates(std::span<float> states) {
  if (update_->before == nullptr) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(update_->before->Read(states_read_, AsBytes(states)));
  states_read_ += std::ssize(states);
  return absl::OkStatus();
}

absl::Status RoundMean::Next(int64_t first, std::span<float> out) {
  const auto exchanged =
      std::upper_bound(plan_.exchanged.begin(), plan_.exchanged.end(), first,
                       [](int64_t position, const Interval& i) { return position < i.end; });
  if (exchanged == plan_.exchanged.end() || first < exchanged->begin) return Keep(first, out);
  values_.resize(out.size());
  CADRE_ASSIGN_OR_RETURN(const bool known, ReadBefore(first, out.size()));
  const bool measured = known && groups_.size() > 1;
  if (measured) sums_.Begin(before_);
  for (size_t g = 0; g < groups_.size(); ++g) {
    CADRE_RETURN_IF_ERROR(Read(groups_[g], first, values_));
    const float weight = groups_[g].source->weight;
    if (g == 0) {
      SetWeighted(weight, values_, out);
    } else {
      AddWeighted(weight, values_, out);
    }
    if (!measured) continue;
    ClearStatistics(first, values_);
    if (coded()) AddWeighted(1, before_, values_);
    sums_.Add(weight, values_);
  }
  if (measured) sums_.End();
  if (coded() && update_ == nullptr) AddWeighted(1, before_, out);
  return update_ == nullptr ? absl::OkStatus() : Update(first, out);
}

absl::Status RoundMean::Update(int64_t first, std::span<float> values) {
  RoundUpdate& update = *update_;
  const size_t n = values.size();
  std::vector<float> all(update.number_of_states() * n);
  const std::span<float> states(all);
  CADRE_RETURN_IF_ERROR(ReadStates(states));
  const std::span<float> residual = update.down ? states.last(n) : std::span<float>();
  // The exact model before the round; 0 for statistics.
  std::vector<float> exact = before_;
  if (update.down) AddWeighted(1, residual, exact);
  if (coded()) AddWeighted(1, exact, values);
  if (update.outer) UpdateOuter(first, exact, values, states);
  if (update.down) {
    AddChange(first, exact, values);
    CADRE_RETURN_IF_ERROR(Publish(first, values, residual));
  }
  return update.states == nullptr ? absl::OkStatus() : update.states->Append(AsText(states));
}

void RoundMean::UpdateOuter(int64_t first, std::span<const float> before, std::span<float> values,
                            std::span<float> states) {
  OuterUpdate& outer = *update_->outer;
  const size_t n = values.size();
  const auto update = [&](Interval part) {
    if (part.empty()) return;
    std::array<std::span<float>, 2> parts;
    for (int i = 0; i < outer.states(); ++i) {
      parts[i] = states.subspan(i * n + part.begin, part.size());
    }
    outer.Update(before.subspan(part.begin, part.size()), values.subspan(part.begin, part.size()),
                 parts);
  };
  int64_t trained = 0;
  ForEachStatistic({first, first + std::ssize(values)}, [&](Interval part) {
    update({trained, part.begin});
    trained = part.end;
  });
  update({trained, std::ssize(values)});
}

void RoundMean::AddChange(int64_t first, std::span<const float> before,
                          std::span<const float> values) {
  std::vector<float> change(values.begin(), values.end());
  for (size_t i = 0; i < change.size(); ++i) change[i] -= before[i];
  ClearStatistics(first, change);
  double squared = 0;
  for (const float value : change) squared += double{value} * value;
  v1::ResidualSums& sums = update_->residual;
  sums.set_change_squared(sums.change_squared() + squared);
}

absl::Status RoundMean::Publish(int64_t first, std::span<float> values, std::span<float> residual) {
  const std::span<const ExchangeUnit> units = plan_.units->In({first, first + std::ssize(values)});
  // Statistics are values: before_ is 0 there.
  std::vector<float> difference(values.begin(), values.end());
  for (size_t i = 0; i < values.size(); ++i) difference[i] = values[i] - before_[i];
  std::string frame;
  CADRE_RETURN_IF_ERROR(EncodeFrame(units, *update_->down, difference, &frame, &update_->words));
  CADRE_RETURN_IF_ERROR(DecodeFrame(units, *update_->down, frame, &difference));
  double residual_squared = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const float published = before_[i] + difference[i];
    residual[i] = values[i] - published;
    values[i] = published;
    residual_squared += double{residual[i]} * residual[i];
  }
  v1::ResidualSums& sums = update_->residual;
  sums.set_residual_squared(sums.residual_squared() + residual_squared);
  return update_->frame->Append(frame);
}

DiscrepancyTerms RoundMean::discrepancy() const {
  return reader_ == nullptr || groups_.size() < 2 ? DiscrepancyTerms() : sums_.Total();
}

}  // namespace cadre
