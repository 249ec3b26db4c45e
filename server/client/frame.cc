#include "server/client/frame.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace cadre {
namespace {

constexpr uint64_t kWord = 4;
constexpr uint64_t kReadBytes = 64 << 10;

Codec CodecOf(const ExchangeUnit& unit, const Codec& codec) {
  return unit.kind == ExchangeUnit::Kind::kCoded ? codec : Codec{CodecKind::kFp32};
}

uint64_t Padded(uint64_t bytes) { return (bytes + kWord - 1) / kWord * kWord; }

absl::Status In(const ExchangeUnit& unit, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("positions ", unit.positions.begin, " to ",
                                                  unit.positions.end, ": ", status.message()));
}

}  // namespace

Codec CodecOf(const v1::Coding& coding) {
  switch (coding.codec()) {
    case v1::CODEC_BF16:
      return {CodecKind::kBf16};
    case v1::CODEC_INT8:
      return {CodecKind::kInt8};
    case v1::CODEC_E3M0:
      return {CodecKind::kE3m0};
    case v1::CODEC_STAT2:
      return {CodecKind::kStat2};
    case v1::CODEC_TOPK:
      return {CodecKind::kTopK, coding.keep()};
    default:
      return {CodecKind::kFp32};
  }
}

int64_t MaxFrameWords(std::span<const ExchangeUnit> units, const Codec& codec) {
  uint64_t bytes = 0;
  for (const ExchangeUnit& unit : units) {
    bytes += Padded(MaxCodedBytes(CodecOf(unit, codec), unit.positions.size()));
  }
  return static_cast<int64_t>(bytes / kWord);
}

absl::Status EncodeFrame(std::span<const ExchangeUnit> units, const Codec& codec,
                         std::span<const float> values, std::string* frame,
                         std::vector<uint16_t>* words) {
  for (const ExchangeUnit& unit : units) {
    const size_t size = unit.positions.size();
    const size_t begin = frame->size();
    const absl::Status status = Encode(CodecOf(unit, codec), values.first(size), frame);
    if (!status.ok()) return In(unit, status);
    frame->resize(begin + Padded(frame->size() - begin));
    if (words != nullptr) words->push_back(static_cast<uint16_t>((frame->size() - begin) / kWord));
    values = values.subspan(size);
  }
  return absl::OkStatus();
}

absl::Status FrameReader::Fill(uint64_t needed) {
  const uint64_t unread = buffer_.size() - begin_;
  const uint64_t left = bytes_ - offset_ - buffer_.size();
  if (unread >= needed || left == 0) return absl::OkStatus();
  offset_ += begin_;
  buffer_.erase(0, begin_);
  begin_ = 0;
  const uint64_t more = std::min(left, std::max(kReadBytes, needed) - unread);
  buffer_.resize(unread + more);
  return read_(offset_ + unread, std::span(buffer_).subspan(unread));
}

absl::Status FrameReader::Next(const ExchangeUnit& unit, std::span<float> values) {
  const Codec codec = CodecOf(unit, codec_);
  CADRE_RETURN_IF_ERROR(Fill(Padded(MaxCodedBytes(codec, std::ssize(values)))));
  const absl::string_view unread = absl::string_view(buffer_).substr(begin_);
  absl::string_view rest = unread;
  if (const absl::Status status = Decode(codec, &rest, values); !status.ok()) {
    return In(unit, status);
  }
  const size_t used = unread.size() - rest.size();
  const absl::string_view padding = rest.substr(0, Padded(used) - used);
  if (padding.size() != Padded(used) - used ||
      padding.find_first_not_of('\0') != absl::string_view::npos) {
    return In(unit, absl::InvalidArgumentError("the padding is missing or not zero"));
  }
  begin_ += Padded(used);
  return absl::OkStatus();
}

absl::Status FrameReader::CheckEnd() const {
  const uint64_t read = offset_ + begin_;
  if (read == bytes_) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the frame has ", bytes_, " bytes, and its units only ", read));
}

absl::Status DecodeFrame(std::span<const ExchangeUnit> units, const Codec& codec,
                         absl::string_view frame, std::vector<float>* values) {
  FrameReader reader(codec, frame.size(), [frame](uint64_t offset, std::span<char> bytes) {
    std::copy_n(frame.begin() + static_cast<int64_t>(offset), bytes.size(), bytes.begin());
    return absl::OkStatus();
  });
  int64_t size = 0;
  for (const ExchangeUnit& unit : units) size += unit.positions.size();
  values->resize(size);
  std::span<float> rest(*values);
  for (const ExchangeUnit& unit : units) {
    const int64_t n = unit.positions.size();
    CADRE_RETURN_IF_ERROR(reader.Next(unit, rest.first(n)));
    rest = rest.subspan(n);
  }
  return reader.CheckEnd();
}

}  // namespace cadre
