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
// damaged, the round is applied without it.
#include "server/round_mean.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "server/mean.h"

namespace cadre {
namespace {

std::span<char> AsBytes(std::span<float> values) {
  return {reinterpret_cast<char*>(values.data()), values.size_bytes()};
}

}  // namespace

RoundMean::RoundMean(const ApplyPlan& plan, Files files, std::unique_ptr<VersionReader> before)
    : files_(std::move(files)), statistics_(plan.statistics) {
  for (const GroupSource& source : plan.groups) groups_.push_back({.source = &source});
  const bool fits = before != nullptr && before->span() == plan.span;
  if (fits && groups_.size() > 1) reader_ = std::move(before);
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

bool RoundMean::ReadBefore(int64_t first, size_t size) {
  if (reader_ == nullptr) return false;
  before_.resize(size);
  const absl::Status status = reader_->Read(first, AsBytes(before_));
  if (status.ok()) {
    ClearStatistics(first, before_);
    return true;
  }
  LOG(WARNING) << "the discrepancy of the round is unknown: " << status;
  reader_.reset();
  return false;
}

void RoundMean::ClearStatistics(int64_t first, std::span<float> values) const {
  const Interval read{first, first + std::ssize(values)};
  auto statistic =
      std::lower_bound(statistics_.begin(), statistics_.end(), first,
                       [](const Interval& s, int64_t position) { return s.end <= position; });
  for (; statistic != statistics_.end() && statistic->begin < read.end; ++statistic) {
    const Interval clear = Intersect(*statistic, read);
    std::fill_n(values.begin() + (clear.begin - first), clear.size(), 0.0F);
  }
}

absl::Status RoundMean::Next(int64_t first, std::span<float> out) {
  values_.resize(out.size());
  const bool measured = ReadBefore(first, out.size());
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
  return absl::OkStatus();
}

DiscrepancyTerms RoundMean::discrepancy() const {
  return reader_ == nullptr ? DiscrepancyTerms() : sums_.Total();
}

}  // namespace cadre
