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
#include "base/parallel_pieces.h"
#include "base/status.h"
#include "base/weighted_sums.h"
#include "glog/logging.h"
#include "model/frame.h"
#include "plan/exchange_memory.h"

namespace cadre {
namespace {

// Spans of units that a thread computes one after the other.
constexpr int64_t kPiece = 64;

absl::Status Nothing(int, int64_t, int64_t) { return absl::OkStatus(); }

int64_t ElementsOf(const std::vector<Owned>& parts) {
  int64_t elements = 0;
  for (const Owned& part : parts) elements += part.positions.size();
  return elements;
}

// As ForEachPiece, of pieces of `size` spans; with fewer threads if there are fewer pieces.
absl::Status ForEachPieceOf(int64_t spans, int64_t size, int threads, const PieceWork& compute,
                            const PieceWork& append = Nothing) {
  const int64_t pieces = size == 0 ? 0 : (spans + size - 1) / size;
  return ForEachPiece(Pieces::OfSize(spans, size),
                      static_cast<int>(std::clamp<int64_t>(pieces, 1, threads)), compute, append);
}

// Calls use(span) for each, on up to so many threads.
template <typename UnitSpan, typename Use>
void ForEachSpan(const std::vector<UnitSpan>& spans, int threads, const Use& use) {
  const auto compute = [&](int, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) use(spans[i]);
    return absl::OkStatus();
  };
  ForEachPieceOf(std::ssize(spans), kPiece, threads, compute).IgnoreError();
}

// Copies the owned values of the spans to where they are among the contributed ones.
template <typename UnitSpan>
void CopyFrom(const std::vector<UnitSpan>& spans, int threads, std::vector<float>* values) {
  values->resize(spans.empty() ? 0 : spans.back().i + spans.back().size());
  ForEachSpan(spans, threads, [values](const UnitSpan& span) {
    absl::c_copy(span.owned, values->begin() + span.i);
  });
}

// Overwrites the owned values of the spans with those of all parts.
template <typename UnitSpan>
void CopyTo(const std::vector<float>& values, const std::vector<UnitSpan>& spans, int threads) {
  ForEachSpan(spans, threads, [&values](const UnitSpan& span) {
    std::copy_n(values.begin() + span.p, span.size(), span.owned.begin());
  });
}

// Appends the frame of the spans, of which values_of(span, scratch) returns the values. `offsets`
// becomes where its pieces begin, and its end. InvalidArgument for values that are not finite.
template <typename UnitSpan, typename ValuesOf>
absl::Status EncodePieces(const std::vector<UnitSpan>& spans, const Codec& codec, int threads,
                          const ValuesOf& values_of, std::string* frame,
                          std::vector<size_t>* offsets) {
  offsets->clear();
  std::vector<std::string> pieces(threads);
  const auto code = [&](int thread, int64_t begin, int64_t end) -> absl::Status {
    pieces[thread].clear();
    std::vector<float> scratch(kUnitSize);
    for (int64_t i = begin; i < end; ++i) {
      const std::span<const float> values = values_of(spans[i], std::span(scratch));
      CADRE_RETURN_IF_ERROR(
          EncodeFrame(std::span(&spans[i].unit, 1), codec, values, &pieces[thread]));
    }
    return absl::OkStatus();
  };
  const auto append = [&](int thread, int64_t, int64_t) {
    offsets->push_back(frame->size());
    *frame += pieces[thread];
    return absl::OkStatus();
  };
  CADRE_RETURN_IF_ERROR(ForEachPieceOf(std::ssize(spans), kPiece, threads, code, append));
  offsets->push_back(frame->size());
  return absl::OkStatus();
}

// Calls use(span, decoded, scratch) with what the frame has for each span, on up to so many
// threads; `scratch` has its size. `offsets`: those of the frame's pieces, or of the whole frame,
// and its end. InvalidArgument for a malformed frame.
template <typename UnitSpan, typename Use>
absl::Status DecodePieces(const std::vector<UnitSpan>& spans, const Codec& codec,
                          absl::string_view frame, const std::vector<size_t>& offsets, int threads,
                          const Use& use) {
  if (spans.empty()) return FrameReader(codec, frame.size(), nullptr).CheckEnd();
  const int64_t size = offsets.size() == 2 ? std::ssize(spans) : kPiece;
  const auto decode = [&](int, int64_t begin, int64_t end) -> absl::Status {
    const size_t from = offsets[begin / size];
    const absl::string_view coded = frame.substr(from, offsets[begin / size + 1] - from);
    FrameReader reader(codec, coded.size(), [&](uint64_t offset, std::span<char> bytes) {
      std::memcpy(bytes.data(), coded.data() + offset, bytes.size());
      return absl::OkStatus();
    });
    std::vector<float> decoded(kUnitSize);
    std::vector<float> scratch(kUnitSize);
    for (int64_t i = begin; i < end; ++i) {
      const UnitSpan& span = spans[i];
      const std::span<float> values = std::span(decoded).first(span.size());
      CADRE_RETURN_IF_ERROR(reader.Next(span.unit, values));
      use(span, std::span<const float>(values), std::span(scratch).first(span.size()));
    }
    return reader.CheckEnd();
  };
  return ForEachPieceOf(std::ssize(spans), size, threads, decode);
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
  const std::vector<Owned>& parts = contribution_->parts;
  if (!form_.up && !ReadsOwned(parts)) CopyFrom(UnitSpansOf(parts), form_.threads, &staged_);
  if (form_.overlaps() && form_.keeps_changes()) {
    CopyFrom(UnitSpansOf(parts), form_.threads, &contributed_);
  }
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
  const std::vector<UnitSpan> spans = UnitSpansOf(parts);
  if (form_.up) {
    const Codec codec = CodecOf(*form_.up);
    frame_.reserve(MaxFrameWords(UnitsOf(parts), codec) * sizeof(float));
    const auto values_of = [&](const UnitSpan& span, std::span<float> change) {
      progress.Advance();
      ChangeOf(span, change);
      return span.trained() ? change : ContributedIn(span);
    };
    CADRE_RETURN_IF_ERROR(
        EncodePieces(spans, codec, form_.threads, values_of, &frame_, &frame_offsets_));
  } else if (carries) {
    ForEachSpan(spans, form_.threads, [&](const UnitSpan& span) {
      progress.Advance();
      if (!span.trained()) return;
      std::vector<float> values(kUnitSize);
      CarriedIn(span, values);
      for (size_t k = 0; k < span.size(); ++k) staged_[span.i + k] += values[k];
    });
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
  if (!span.trained()) {
    std::fill_n(change.begin(), span.size(), 0.0F);
    return;
  }
  CarriedIn(span, change);
  AddDifference(ContributedIn(span), std::span(version_).subspan(span.p, span.size()),
                change.first(span.size()));
}

template <typename Use>
void ShardValues::ForEachLeftOut(const std::vector<UnitSpan>& spans, TrainerProgress& progress,
                                 const Use& use) const {
  const absl::Status decoded = DecodePieces(
      spans, CodecOf(*form_.up), frame_, frame_offsets_, form_.threads,
      [&](const UnitSpan& span, std::span<const float> coded, std::span<float> left_out) {
        progress.Advance();
        ChangeOf(span, left_out);
        if (span.trained()) AddWeighted(-1, coded, left_out);
        use(span, std::span<const float>(left_out));
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
    ForEachSpan(spans, form_.threads, [&](const UnitSpan& span) {
      ChangeOf(span, carried_in(span));
      if (is_late) return;
      // The bits of a coder, whose zeros have signs.
      for (float& value : carried_in(span)) value *= share.factor;
    });
  } else if (included && form_.up && !screened) {
    ForEachLeftOut(spans, progress, [&](const UnitSpan& span, std::span<const float> left) {
      SetWeighted(share.factor, left, carried_in(span));
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
  CopyFrom(UnitSpansOf(parts_), form_.threads, &version_);
  version_number_ = 0;
}

std::span<const float> ShardValues::Contiguous() {
  version_number_.reset();
  if (parts_.size() == 1) return parts_.front().values;
  CopyFrom(UnitSpansOf(parts_), form_.threads, &version_);
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
  const std::vector<Owned> parts = PartsOf(frame.fragment);
  // A malformed frame is found by its decoder.
  const auto offsets = PieceOffsets(UnitsOf(parts), CodecOf(*form_.down), frame.bytes, kPiece)
                           .value_or(std::vector<size_t>{0, frame.bytes.size()});
  const uint32_t version = *std::exchange(version_number_, std::nullopt);
  const absl::Status added = DecodePieces(
      UnitSpansOf(parts), CodecOf(*form_.down), frame.bytes, offsets, form_.threads,
      [&](const UnitSpan& span, std::span<const float> change, std::span<float>) {
        progress.Advance();
        const std::span<float> values = std::span(version_).subspan(span.p, span.size());
        (span.trained() ? AddWeighted : SetWeighted)(1, change, values);
      });
  if (!added.ok()) return absl::DataLossError(added.message());
  version_number_ = version + 1;
  return absl::OkStatus();
}

uint32_t ShardValues::Adopt() {
  const uint32_t dropped = contribution_ ? contribution_->dropped : 0;
  if (form_.overlaps() || form_.fragments > 1) PrepareMerge();
  CopyTo(version_, UnitSpansOf(parts_), form_.threads);
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
    CopyFrom(UnitSpansOf(parts_), form_.threads, &merged);
  } else if (ElementsOf(contribution.parts) < size_) {
    merged = version_;
  }
  const v1::Overlap& overlap = form_.averaging.overlap();
  ForEachSpan(UnitSpansOf(contribution.parts), form_.threads, [&](const UnitSpan& span) {
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
  });
}

void ShardValues::Merge() { CopyTo(merged(), UnitSpansOf(parts_), form_.threads); }

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
  ForEachSpan(spans, form_.threads,
              [&](const UnitSpan& span) { ChangeOf(span, change.subspan(span.p, span.size())); });
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
