// The rules are applied one after the other, and the first that finds something decides the
// attempt: what is measured against the mean of a round says little while the mean has a change
// that is a thousand times too long. So each attempt is measured again, without what was left out
// before:
//
//   1. what is not finite, or more than max_ratio times as long as the median and as the changes
//      that the group has made before, for equal numbers of samples; also with one or two groups
//   2. lengths, for ScreenClip and ScreenExclude, compared with the median
//   3. repeated changes
//   4. directions, one group for each attempt, because a group that disagrees also makes the others
//      disagree with the mean of the rest
//
// Rules 2 to 4 require three participants, since of two that differ either may be wrong, and never
// leave out half of those who have contributed; nor does rule 1 without earlier changes of the
// group. A run in which most groups are wrong cannot be told from one in which a few are; then
// `cadre rollback` remains.
//
// The cosine of a group's change x_g with the mean of the others follows from the sums: with
// m = sum of w_g x_g, the others have m - w_g x_g. It is made of a sample of the positions
// (server/block_changes.h), so it can be evaded by a group that knows which, and is noisy for
// models of a few hundred parameters; lengths are exact. Directions of honest groups agree less and
// less the fewer steps they make between averages, which is why the bound is relative to the
// others'.
//
// Groups that repeat an old change are recognized by two sums, which agree by chance about once in
// a million: the values of a change in fp32 differ from the old ones by rounding only.
#include "coordinator/run/screen.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "model/change_sums.h"

namespace cadre {
namespace {

constexpr double kMinCosine = 0.05;
constexpr double kSameLength = 1e-6;
constexpr double kSameSample = 1e-5;

bool IsClose(double a, double b, double tolerance) {
  return std::abs(a - b) <= tolerance * std::max(std::abs(a), std::abs(b));
}

// The lower one of the middle two; nothing of no values.
std::optional<double> LowerMedian(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  const auto middle = values.begin() + (std::ssize(values) - 1) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class Screening {
 public:
  Screening(const v1::Screen& screen, const v1::CommitRecord& commit, const v1::ChangeSums& changes,
            const PastChanges& past)
      : screen_(screen), commit_(commit), changes_(changes), past_(past) {
    for (int i = 0; i < size(); ++i) lengths_.push_back(std::sqrt(changes_.squared(i)));
    for (const v1::ScreenedChange& each : commit.screened()) {
      left_out_ += each.round() == commit.round() && each.scale() == 0 ? 1 : 0;
    }
  }

  std::vector<v1::ScreenedChange> Result() {
    for (int i = 0; i < size(); ++i) CheckFinite(i);
    for (int i = 0; i < size(); ++i) CheckMaxRatio(i);
    if (!found_.empty() || size() < 3) return std::move(found_);
    if (screen_.has_clip()) Clip();
    if (screen_.has_exclude()) Exclude();
    return std::move(found_);
  }

 private:
  int size() const { return commit_.participants_size(); }

  void Add(int i, v1::ScreenCause cause, double value, double bound, double scale = 0) {
    v1::ScreenedChange& change = found_.emplace_back();
    change.set_group(commit_.participants(i).group());
    change.set_generation(commit_.participants(i).generation());
    change.set_round(commit_.round());
    change.set_cause(cause);
    change.set_value(value);
    change.set_bound(bound);
    change.set_scale(static_cast<float>(scale));
  }

  // The lower median of the lengths that are known.
  std::optional<double> MedianLength() const {
    std::vector<double> lengths;
    for (const double length : lengths_) {
      if (std::isfinite(length)) lengths.push_back(length);
    }
    return LowerMedian(std::move(lengths));
  }
  // How many times as many samples the participant has as `others`, at least 1.
  double SamplesOver(int i, double others) const {
    const auto own = static_cast<double>(commit_.participants(i).samples());
    return others > 0 ? std::max(1.0, own / others) : 1;
  }

  void CheckFinite(int i) {
    if (!std::isinf(lengths_[i])) return;
    Add(i, v1::SCREEN_CAUSE_NOT_FINITE, lengths_[i], std::numeric_limits<float>::max());
  }

  // Without earlier changes of its own, a participant may be left out only if most others agree.
  void CheckMaxRatio(int i) {
    if (!std::isfinite(lengths_[i])) return;
    std::vector<double> own;
    std::vector<double> samples;
    for (const PastChanges::Change& past : past_.Of(commit_.participants(i).group())) {
      own.push_back(std::sqrt(past.squared));
      samples.push_back(static_cast<double>(past.samples));
    }
    const double usual =
        LowerMedian(own).value_or(0) * SamplesOver(i, LowerMedian(samples).value_or(0));
    // If there are two, the length of the other one.
    double reference = size() > 2 ? MedianLength().value_or(0) : 0;
    if (size() == 2 && std::isfinite(lengths_[1 - i])) reference = lengths_[1 - i];
    const double bound = screen_.max_ratio() * std::max(usual, reference);
    if (bound == 0 || lengths_[i] <= bound || (usual == 0 && !MayLeaveOut())) return;
    Add(i, v1::SCREEN_CAUSE_TOO_LONG, lengths_[i], bound);
  }

  void Clip() {
    const double bound = screen_.clip().ratio() * MedianLength().value_or(0);
    for (int i = 0; i < size(); ++i) {
      const bool clipped = commit_.participants(i).scale() > 0;
      if (clipped || bound == 0 || !std::isfinite(lengths_[i]) || lengths_[i] <= bound) continue;
      Add(i, v1::SCREEN_CAUSE_TOO_LONG, lengths_[i], bound, bound / lengths_[i]);
    }
  }

  // Whether a further participant may be left out.
  bool MayLeaveOut() const {
    const size_t all = size() + left_out_;
    return 2 * (left_out_ + found_.size() + 1) < all;
  }

  void Exclude() {
    for (int i = 0; i < size(); ++i) CheckLength(i);
    if (found_.empty()) {
      for (int i = 0; i < size(); ++i) CheckRepeated(i);
    }
    if (found_.empty()) CheckDirections();
  }

  // A group that catches up contributes after fewer steps, so its change may be shorter. A length
  // that is unknown (NaN) is neither too long nor too short.
  void CheckLength(int i) {
    const double median = MedianLength().value_or(0);
    if (median == 0 || !MayLeaveOut()) return;
    std::vector<double> samples;
    for (const v1::Participant& each : commit_.participants()) {
      samples.push_back(static_cast<double>(each.samples()));
    }
    const auto own = static_cast<double>(commit_.participants(i).samples());
    const double share = std::min(1.0, own / *LowerMedian(std::move(samples)));
    const double ratio = screen_.exclude().ratio();
    if (lengths_[i] > ratio * median) {
      Add(i, v1::SCREEN_CAUSE_TOO_LONG, lengths_[i], ratio * median);
    } else if (lengths_[i] < share * median / ratio) {
      Add(i, v1::SCREEN_CAUSE_TOO_SHORT, lengths_[i], share * median / ratio);
    }
  }

  void CheckRepeated(int i) {
    const double squared = changes_.squared(i);
    if (squared == 0 || !MayLeaveOut()) return;
    for (const PastChanges::Change& past : past_.Of(commit_.participants(i).group())) {
      if (!IsClose(past.squared, squared, kSameLength) ||
          !IsClose(past.sampled_squared, changes_.sampled_squared(i), kSameSample)) {
        continue;
      }
      Add(i, v1::SCREEN_CAUSE_REPEATED, lengths_[i], past.round);
      return;
    }
  }

  // The cosine with the mean of the others; NaN if one of them is zero.
  double CosineOf(int i) const {
    double samples = 0;
    for (const v1::Participant& each : commit_.participants()) {
      samples += static_cast<double>(each.samples());
    }
    const double weight = static_cast<double>(commit_.participants(i).samples()) / samples;
    const double own = changes_.sampled_squared(i);
    const double product = changes_.product(i);
    const double others = changes_.mean_squared(0) - 2 * weight * product + weight * weight * own;
    return (product - weight * own) / std::sqrt(own * std::max(others, 0.0));
  }

  void CheckDirections() {
    std::vector<double> cosines;
    for (int i = 0; i < size(); ++i) cosines.push_back(CosineOf(i));
    if (!std::all_of(cosines.begin(), cosines.end(), [](double c) { return std::isfinite(c); })) {
      return;
    }
    const int lowest =
        static_cast<int>(std::min_element(cosines.begin(), cosines.end()) - cosines.begin());
    std::vector<double> others = cosines;
    others.erase(others.begin() + lowest);
    const double median = *LowerMedian(std::move(others));
    const double bound = screen_.exclude().agreement() * median;
    if (median < kMinCosine || screen_.exclude().agreement() == -1 || cosines[lowest] >= bound ||
        !MayLeaveOut()) {
      return;
    }
    Add(lowest, v1::SCREEN_CAUSE_DIRECTION, cosines[lowest], bound);
  }

  const v1::Screen& screen_;
  const v1::CommitRecord& commit_;
  const v1::ChangeSums& changes_;
  const PastChanges& past_;
  // Infinite: not finite; NaN: unknown.
  std::vector<double> lengths_;
  // Participants of earlier attempts.
  size_t left_out_ = 0;
  std::vector<v1::ScreenedChange> found_;
};

}  // namespace

void PastChanges::Add(const v1::CommitRecord& commit) {
  // After a rollback, groups may repeat the steps of the branch that the run has left.
  if (commit.has_restores()) changes_.clear();
  for (int i = 0; i < commit.changes().squared_size() && i < commit.participants_size(); ++i) {
    if (!std::isfinite(commit.changes().squared(i))) continue;
    std::vector<Change>& changes = changes_[commit.participants(i).group()];
    if (changes.size() == kRemembered) changes.erase(changes.begin());
    changes.push_back({commit.round(), commit.participants(i).samples(),
                       commit.changes().squared(i), commit.changes().sampled_squared(i)});
  }
}

const std::vector<PastChanges::Change>& PastChanges::Of(uint32_t group) const {
  static const auto& none = *new std::vector<Change>();
  const auto found = changes_.find(group);
  return found == changes_.end() ? none : found->second;
}

std::optional<v1::ChangeSums> ChangesOf(const v1::CommitRecord& commit) {
  v1::ChangeSums sums = NoChanges(commit.participants_size());
  for (const v1::ShardDigest& shard : commit.digests()) {
    if (!AddChanges(shard.changes(), sums)) return std::nullopt;
  }
  return sums;
}

std::vector<v1::ScreenedChange> ScreenRound(const v1::Screen& screen,
                                            const v1::CommitRecord& commit,
                                            const PastChanges& past) {
  const std::optional<v1::ChangeSums> changes = ChangesOf(commit);
  if (!changes) return {};
  return Screening(screen, commit, *changes, past).Result();
}

std::string WhyScreened(const v1::ScreenedChange& change) {
  const std::string value = absl::StrCat(change.value());
  const std::string bound = absl::StrCat(change.bound());
  switch (change.cause()) {
    case v1::SCREEN_CAUSE_NOT_FINITE:
      return "it has values that are not finite";
    case v1::SCREEN_CAUSE_TOO_LONG:
      return absl::StrCat("the length of its change is ", value, ", and the bound is ", bound);
    case v1::SCREEN_CAUSE_TOO_SHORT:
      return absl::StrCat("the length of its change is ", value, ", and the lower bound is ",
                          bound);
    case v1::SCREEN_CAUSE_DIRECTION:
      return absl::StrCat("the cosine of its change with those of the others is ", value,
                          ", and the lower bound is ", bound);
    case v1::SCREEN_CAUSE_REPEATED:
      return absl::StrCat("it repeats its change of round ", bound);
    default:
      return "its change is unusual";
  }
}

}  // namespace cadre
