// Memory. There are two values for each one that is coded, the version and what is carried, and
// with overlap a third one, the contributed value: training continues meanwhile. All else is
// computed unit by unit. The change of a contribution, and what its frame leaves out, follow from
// them and from the frame until a later version is received. By then the decision is known, and one
// of both takes the place of what was carried. The merged values take the place of the contributed
// ones. In fp32, values that are scattered over buckets are copied, because the client sends
// contiguous chunks.
//
// A late change is weighted when its values are contributed next, which with fragments is not the
// next contribution: if the generation ends before, the next one weights it by how late it is by
// then.
#include "member/shard_values.h"

#include <algorithm>
#include <cstring>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "glog/logging.h"
#include "model/frame.h"
#include "plan/exchange_memory.h"

namespace cadre {
namespace {

int64_t ElementsOf(const std::vector<Owned>& parts) {
  int64_t elements = 0;
  for (const Owned& part : parts) elements += part.positions.size();
  return elements;
}

void CopyFrom(const std::vector<Owned>& parts, std::vector<float>* values) {
  values->clear();
  values->reserve(ElementsOf(parts));
  for (const Owned& part : parts) {
    values->insert(values->end(), part.values.begin(), part.values.end());
  }
}

void CopyTo(const std::vector<float>& values, const std::vector<Owned>& parts) {
  auto from = values.begin();
  for (const Owned& part : parts) {
    std::copy_n(from, part.values.size(), part.values.begin());
    from += std::ssize(part.values);
  }
}

// Calls use(span, decoded) with what the frame of the spans has for each. InvalidArgument
// for a malformed frame.
template <typename UnitSpan, typename Use>
absl::Status ForEachDecoded(std::span<const UnitSpan> spans, const Codec& codec,
                            absl::string_view frame, TrainerProgress& progress, const Use& use) {
  FrameReader reader(codec, frame.size(), [&](uint64_t offset, std::span<char> bytes) {
    std::memcpy(bytes.data(), frame.data() + offset, bytes.size());
    return absl::OkStatus();
  });
  std::vector<float> decoded(kUnitSize);
  for (const UnitSpan& span : spans) {
    const std::span<float> values = std::span(decoded).first(span.size());
    CADRE_RETURN_IF_ERROR(reader.Next(span.unit, values));
    use(span, values);
    progress.Advance();
  }
  return reader.CheckEnd();
}

// Requires: `late` has none of the parts, which are in order.
void AddLate(const std::vector<Owned>& parts, uint32_t round, float factor,
             std::vector<ShardValues::LateChange>& late) {
  const size_t before = late.size();
  for (const Owned& part : parts) {
    const bool continues =
        late.size() > before && late.back().positions.end == part.positions.begin;
    if (continues) {
      late.back().positions.end = part.positions.end;
    } else {
      late.push_back({part.positions, round, factor});
    }
  }
  absl::c_sort(late, [](const ShardValues::LateChange& a, const ShardValues::LateChange& b) {
    return a.positions.begin < b.positions.begin;
  });
}

void RemoveLate(const std::vector<Owned>& parts, std::vector<ShardValues::LateChange>& late) {
  for (const auto& [positions, values] : parts) {
    if (late.empty()) return;
    std::vector<ShardValues::LateChange> left;
    for (const ShardValues::LateChange& each : late) {
      for (const Interval rest : {Interval(each.positions.begin, positions.begin),
                                  Interval(positions.end, each.positions.end)}) {
        const Interval part = Intersect(rest, each.positions);
        if (!part.empty()) left.push_back({part, each.round, each.factor});
      }
    }
    late = std::move(left);
  }
}

}  // namespace

ShardValues::ShardValues(const ExchangeForm& form, std::vector<Owned> parts)
    : form_(form), parts_(std::move(parts)), size_(ElementsOf(parts_)) {}

std::vector<Owned> ShardValues::PartsOf(uint32_t fragment) const {
  if (fragment == 0 || parts_.empty()) return parts_;
  std::vector<Owned> parts;
  for (const Interval& interval : form_.units->FragmentIn(positions(), fragment, form_.fragments)) {
    for (const Owned& part : PartsIn(interval, parts_)) parts.push_back(part);
  }
  return parts;
}

std::vector<ExchangeUnit> ShardValues::UnitsOf(const std::vector<Owned>& parts) const {
  std::vector<Interval> intervals;
  for (const Owned& part : parts) intervals.push_back(part.positions);
  return form_.units->In(intervals);
}

int64_t ShardValues::ExpectedBytes() const {
  ExchangedValues values{
      .elements = size_, .contiguous = parts_.size() == 1, .on_device = form_.has_coder};
  if (form_.up) values.frame_words = MaxFrameWords(UnitsOf(parts_), CodecOf(*form_.up));
  return ExchangeBufferBytes(form_.averaging, values);
}

int64_t ShardValues::AllocatedBytes() const {
  size_t bytes = form_.up ? frame_.capacity() : 0;
  for (const auto* buffer : {&staged_, &version_, &contributed_, &of_fragments_, &carried_}) {
    bytes += buffer->capacity() * sizeof(float);
  }
  return static_cast<int64_t>(bytes);
}

std::vector<ShardValues::UnitSpan> ShardValues::UnitSpansOf(const std::vector<Owned>& parts) const {
  std::vector<UnitSpan> spans;
  int64_t i = 0;
  int64_t before = 0;
  auto whole = parts_.begin();
  for (const Owned& part : parts) {
    for (; !whole->positions.contains(part.positions); ++whole) before += whole->positions.size();
    const int64_t first = before + part.positions.begin - whole->positions.begin;
    const auto add = [&](const ExchangeUnit& unit) {
      const int64_t at = unit.positions.begin - part.positions.begin;
      spans.push_back({.unit = unit,
                       .i = i + at,
                       .p = first + at,
                       .owned = part.values.subspan(at, unit.positions.size())});
    };
    if (form_.units != nullptr) {
      for (const ExchangeUnit& unit : form_.units->In(part.positions)) add(unit);
    } else {
      int64_t begin = part.positions.begin;
      for (const v1::Range& range : form_.index.RangesOf(begin, part.positions.end)) {
        const int64_t end = begin + static_cast<int64_t>(range.end() - range.begin());
        const auto kind = IsStatistic(form_.index[range.tensor()].role)
                              ? ExchangeUnit::Kind::kStatistic
                              : ExchangeUnit::Kind::kExact;
        while (begin < end) {
          const int64_t next = std::min(begin + kUnitSize, end);
          add({{begin, next}, kind});
          begin = next;
        }
      }
    }
    i += part.positions.size();
    CHECK_EQ(spans.back().unit.positions.end, part.positions.end) << "a part cuts a unit";
  }
  return spans;
}

// ---- Contributions

void ShardValues::BeginContribution(uint32_t round, uint32_t fragment) {
  contribution_ = Contribution{.round = round, .fragment = fragment, .parts = PartsOf(fragment)};
  frame_.clear();
  if (form_.has_coder) return;
  if (!form_.up && !ReadsOwned(contribution_->parts)) CopyFrom(contribution_->parts, &staged_);
  if (form_.overlaps() && form_.keeps_changes()) CopyFrom(contribution_->parts, &contributed_);
}

void ShardValues::SetFrame(std::string frame) {
  frame_ = std::move(frame);
  contribution_->undecided = true;
}

std::span<const float> ShardValues::ContributedIn(const UnitSpan& span) const {
  if (!form_.overlaps()) return span.owned;
  const std::vector<float>& contributed = form_.keeps_changes() ? contributed_ : staged_;
  return std::span(contributed).subspan(span.i, span.size());
}

std::span<const std::byte> ShardValues::bytes() const {
  if (form_.up) return std::as_bytes(std::span(frame_));
  const std::vector<Owned>& parts = contribution_->parts;
  return std::as_bytes(ReadsOwned(parts) ? parts.front().values : std::span<const float>(staged_));
}

// Changes are relative to the version that the rank has adopted. Without an earlier change, values
// in fp32 are transferred as they are.
absl::Status ShardValues::MakeContribution(TrainerProgress& progress) {
  const std::vector<Owned>& parts = contribution_->parts;
  if (!form_.keeps_changes() || parts.empty()) return absl::OkStatus();
  CHECK_EQ(std::ssize(version_), size_);
  const bool carries = !carried_.empty();
  carried_.resize(size_);
  if (form_.up) {
    frame_.reserve(MaxFrameWords(UnitsOf(parts), CodecOf(*form_.up)) * sizeof(float));
  }
  std::vector<float> values(kUnitSize);
  for (const UnitSpan& span : UnitSpansOf(parts)) {
    progress.Advance();
    if (form_.up) {
      ChangeOf(span, values);
      const std::span<const float> coded = span.trained() ? values : ContributedIn(span);
      CADRE_RETURN_IF_ERROR(
          EncodeFrame(std::span(&span.unit, 1), CodecOf(*form_.up), coded, &frame_));
    } else if (span.trained() && carries) {
      CarriedIn(span, values);
      for (size_t k = 0; k < span.size(); ++k) staged_[span.i + k] += values[k];
    }
  }
  contribution_->undecided = true;
  return absl::OkStatus();
}

void ShardValues::CarriedIn(const UnitSpan& span, std::span<float> carried) const {
  // May be the same memory.
  std::memmove(carried.data(), carried_.data() + span.p, span.size() * sizeof(float));
  const Interval positions = span.unit.positions;
  auto late = std::partition_point(late_.begin(), late_.end(), [&](const LateChange& each) {
    return each.positions.end <= positions.begin;
  });
  for (; late != late_.end() && late->positions.begin < positions.end; ++late) {
    const Interval both = Intersect(late->positions, positions);
    const int64_t at = both.begin - positions.begin;
    for (float& value : carried.subspan(at, both.size())) value *= late->factor;
  }
}

void ShardValues::ChangeOf(const UnitSpan& span, std::span<float> change) const {
  CarriedIn(span, change);
  const std::span<const float> values = ContributedIn(span);
  const float* const version = version_.data() + span.p;
  for (size_t k = 0; k < span.size(); ++k) {
    change[k] = span.trained() ? (values[k] - version[k]) + change[k] : 0;
  }
}

template <typename Use>
void ShardValues::ForEachLeftOut(std::span<const UnitSpan> spans, TrainerProgress& progress,
                                 const Use& use) const {
  std::vector<float> left_out(kUnitSize);
  const absl::Status decoded =
      ForEachDecoded(spans, CodecOf(*form_.up), frame_, progress,
                     [&](const UnitSpan& span, std::span<const float> coded) {
                       const std::span<float> left = std::span(left_out).first(span.size());
                       ChangeOf(span, left);
                       for (size_t k = 0; k < left.size(); ++k) {
                         left[k] = span.trained() ? left[k] - coded[k] : 0;
                       }
                       use(span, std::span<const float>(left));
                     });
  CHECK(decoded.ok()) << decoded;
}

std::optional<KeptShare> ShardValues::Decide(uint32_t version, bool included, bool screened,
                                             TrainerProgress& progress) {
  if (!undecided()) return std::nullopt;
  const KeptShare share =
      KeptShareOf(form_.averaging, contribution_->round, version, included, screened);
  contribution_->undecided = false;
  contribution_->dropped = share.dropped;
  if (form_.has_coder) return share;
  const std::vector<Owned>& parts = contribution_->parts;
  const std::vector<UnitSpan> spans = UnitSpansOf(parts);
  const auto carried_in = [&](const UnitSpan& span) {
    return std::span(carried_).subspan(span.p, span.size());
  };
  const bool is_late = !included && !screened && share.dropped == 0;
  if (!included && !screened) {
    for (const UnitSpan& span : spans) {
      ChangeOf(span, carried_in(span));
      if (is_late) continue;
      // The bits of a coder, whose zeros have signs.
      for (float& value : carried_in(span)) value *= share.factor;
    }
  } else if (included && form_.up && !screened) {
    ForEachLeftOut(spans, progress, [&](const UnitSpan& span, std::span<const float> left) {
      const std::span<float> carried = carried_in(span);
      for (size_t k = 0; k < left.size(); ++k) carried[k] = share.factor * left[k];
    });
  } else {
    // What was screened may not be finite, and a change in fp32 has left nothing out.
    for (const UnitSpan& span : spans) {
      std::fill_n(carried_in(span).begin(), span.size(), 0.0F);
    }
  }
  if (ElementsOf(parts) == size_) late_.clear();
  RemoveLate(parts, late_);
  if (is_late) AddLate(parts, contribution_->round, share.factor, late_);
  return share;
}

// ---- Versions

void ShardValues::SetInitial() {
  CopyFrom(parts_, &version_);
  version_number_ = 0;
}

std::span<const float> ShardValues::Contiguous() {
  version_number_.reset();
  if (parts_.size() == 1) return parts_.front().values;
  CopyFrom(parts_, &version_);
  return version_;
}

std::span<float> ShardValues::BeginVersion() {
  version_number_.reset();
  version_.resize(size_);
  return version_;
}

void ShardValues::SetExchanged(std::span<const float> values) {
  for (const UnitSpan& span : UnitSpansOf(contribution_->parts)) {
    std::copy_n(values.begin() + span.i, span.size(), version_.begin() + span.p);
  }
  ++*version_number_;
}

absl::Status ShardValues::AddFrame(const PulledFrame& frame, TrainerProgress& progress) {
  if (frame.fragment > 0 && (form_.fragments == 1 || frame.fragment > form_.fragments)) {
    return absl::DataLossError(absl::StrCat("the run has no fragment ", frame.fragment));
  }
  const std::vector<UnitSpan> spans = UnitSpansOf(PartsOf(frame.fragment));
  const uint32_t version = *std::exchange(version_number_, std::nullopt);
  const absl::Status added =
      ForEachDecoded(std::span<const UnitSpan>(spans), CodecOf(*form_.down), frame.bytes, progress,
                     [&](const UnitSpan& span, std::span<const float> change) {
                       float* const values = version_.data() + span.p;
                       for (size_t k = 0; k < span.size(); ++k) {
                         values[k] = span.trained() ? values[k] + change[k] : change[k];
                       }
                     });
  if (!added.ok()) return absl::DataLossError(added.message());
  version_number_ = version + 1;
  return absl::OkStatus();
}

uint32_t ShardValues::Adopt() {
  const uint32_t dropped = contribution_ ? contribution_->dropped : 0;
  if (form_.overlaps() || form_.fragments > 1) PrepareMerge();
  CopyTo(version_, parts_);
  contribution_.reset();
  return dropped;
}

std::vector<float>& ShardValues::merged() {
  if (form_.fragments > 1) return of_fragments_;
  return form_.keeps_changes() ? contributed_ : staged_;
}

// A value that was not exchanged continues as it was, unless later versions may have changed it.
void ShardValues::PrepareMerge() {
  std::vector<float>& merged = this->merged();
  const Contribution contribution = contribution_.value_or(Contribution());
  const bool has_rest = contribution.fragment > 0 && version_number_ == contribution.round;
  merged.resize(size_);
  if (has_rest) {
    CopyFrom(parts_, &merged);
  } else if (ElementsOf(contribution.parts) < size_) {
    merged = version_;
  }
  const v1::Overlap& overlap = form_.averaging.overlap();
  for (const UnitSpan& span : UnitSpansOf(contribution.parts)) {
    const float* const version = version_.data() + span.p;
    // May be where the merged values are.
    const std::span<const float> contributed = ContributedIn(span);
    for (size_t k = 0; k < span.size(); ++k) {
      float value = version[k];
      if (span.trained() && form_.overlaps()) {
        const float live = span.owned[k];
        value += overlap.has_blend() ? overlap.blend() * (live - value) : live - contributed[k];
      }
      merged[span.p + k] = value;
    }
  }
}

void ShardValues::Merge() { CopyTo(merged(), parts_); }

// ---- What is added to the change of the next contribution

void ShardValues::CopyCarried(std::span<float> values, bool weighted) const {
  if (carried_.empty()) {
    std::fill(values.begin(), values.end(), 0.0F);
    return;
  }
  absl::c_copy(carried_, values.begin());
  if (!weighted || late_.empty()) return;
  for (const UnitSpan& span : UnitSpansOf(parts_)) {
    CarriedIn(span, values.subspan(span.p, span.size()));
  }
}

void ShardValues::SetCarried(std::span<const float> values, std::vector<LateChange> late) {
  carried_ = std::vector<float>(values.begin(), values.end());
  late_ = std::move(late);
}

std::vector<ShardValues::LateChange> ShardValues::Changes() const {
  std::vector<LateChange> changes = late_;
  if (undecided()) {
    RemoveLate(contribution_->parts, changes);
    AddLate(contribution_->parts, contribution_->round, /*factor=*/1, changes);
  }
  return changes;
}

void ShardValues::CopyUndecided(std::span<float> change, std::span<float> left_out,
                                TrainerProgress& progress) const {
  const std::vector<UnitSpan> spans = UnitSpansOf(contribution_->parts);
  for (const UnitSpan& span : spans) {
    ChangeOf(span, change.subspan(span.p, span.size()));
  }
  if (!form_.up) return;
  ForEachLeftOut(spans, progress, [&](const UnitSpan& span, std::span<const float> values) {
    absl::c_copy(values, left_out.begin() + span.p);
  });
}

void ShardValues::KeepOnlyCarried() {
  frame_ = std::string();
  for (auto* buffer : {&staged_, &version_, &contributed_, &of_fragments_}) {
    *buffer = std::vector<float>();
  }
}

void ShardValues::ClearStatistics(std::span<float> values) const {
  for (const UnitSpan& span : UnitSpansOf(contribution_->parts)) {
    if (!span.trained()) std::fill_n(values.begin() + span.p, span.size(), 0.0F);
  }
}

}  // namespace cadre
