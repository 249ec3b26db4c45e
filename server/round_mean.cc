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

std::span<char> AsBytes(std::span<float> values) {
  return {reinterpret_cast<char*>(values.data()), values.size_bytes()};
}

}  // namespace

RoundMean::RoundMean(const ApplyPlan& plan, Files files, std::unique_ptr<VersionReader> before,
                     OuterRound* outer)
    : files_(std::move(files)), statistics_(plan.statistics), outer_(outer) {
  for (const GroupSource& source : plan.groups) groups_.push_back({.source = &source});
  const bool fits = before != nullptr && before->span() == plan.span;
  if (fits && (outer != nullptr || groups_.size() > 1)) reader_ = std::move(before);
}

absl::Status RoundMean::Read(Group& group, int64_t first, std::span<float> out) const {
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

absl::StatusOr<bool> RoundMean::ReadBefore(int64_t first, size_t size) {
  if (reader_ == nullptr) return false;
  before_.resize(size);
  const absl::Status status = reader_->Read(first, AsBytes(before_));
  if (outer_ != nullptr) CADRE_RETURN_IF_ERROR(status);
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

absl::Status RoundMean::UpdateOuter(int64_t first, std::span<float> values) {
  OuterRound& outer = *outer_;
  const size_t n = values.size();
  outer.states.assign(outer.update.states() * n, 0.0F);
  const std::span<float> states(outer.states);
  if (outer.before != nullptr) {
    CADRE_RETURN_IF_ERROR(outer.before->ReadBlock(outer.block, AsBytes(states)));
  }
  const auto update = [&](Interval part) {
    if (part.empty()) return;
    std::array<std::span<float>, 2> parts;
    for (int i = 0; i < outer.update.states(); ++i) {
      parts[i] = states.subspan(i * n + part.begin, part.size());
    }
    outer.update.Update(std::span(before_).subspan(part.begin, part.size()),
                        values.subspan(part.begin, part.size()), parts);
  };
  int64_t trained = 0;
  ForEachStatistic({first, first + std::ssize(values)}, [&](Interval part) {
    update({trained, part.begin});
    trained = part.end;
  });
  update({trained, std::ssize(values)});
  const absl::string_view bytes(AsBytes(states).data(), AsBytes(states).size());
  return outer.after->WriteBlock(outer.block++, bytes, Crc32c(bytes));
}

absl::Status RoundMean::Next(int64_t first, std::span<float> out) {
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
    sums_.Add(weight, values_);
  }
  if (measured) sums_.End();
  return outer_ == nullptr ? absl::OkStatus() : UpdateOuter(first, out);
}

DiscrepancyTerms RoundMean::discrepancy() const {
  return reader_ == nullptr || groups_.size() < 2 ? DiscrepancyTerms() : sums_.Total();
}

}  // namespace cadre
