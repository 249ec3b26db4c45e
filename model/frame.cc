#include "model/frame.h"

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

absl::Status CheckEndAt(uint64_t end, uint64_t bytes) {
  if (end == bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the frame has ", bytes, " bytes, and its units only ", end));
}

absl::Status In(const ExchangeUnit& unit, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("positions ", unit.positions.begin, " to ",
                                                  unit.positions.end, ": ", status.message()));
}

// Removes the code of the unit and its padding from the front of `rest`.
absl::Status DecodeUnit(const ExchangeUnit& unit, const Codec& codec, absl::string_view* rest,
                        std::span<float> values) {
  const size_t unread = rest->size();
  if (const absl::Status status = Decode(CodecOf(unit, codec), rest, values); !status.ok()) {
    return In(unit, status);
  }
  const size_t used = unread - rest->size();
  const absl::string_view padding = rest->substr(0, Padded(used) - used);
  if (padding.size() != Padded(used) - used ||
      padding.find_first_not_of('\0') != absl::string_view::npos) {
    return In(unit, absl::InvalidArgumentError("the padding is missing or not zero"));
  }
  rest->remove_prefix(padding.size());
  return absl::OkStatus();
}

}  // namespace

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

std::optional<std::vector<size_t>> PieceOffsets(std::span<const ExchangeUnit> units,
                                                const Codec& codec, absl::string_view frame,
                                                size_t piece) {
  std::vector<size_t> offsets;
  size_t at = 0;
  for (size_t i = 0; i < units.size(); ++i) {
    if (i % piece == 0) offsets.push_back(at);
    const auto bytes =
        CodedBytes(CodecOf(units[i], codec), frame.substr(at), units[i].positions.size());
    if (!bytes || at + Padded(*bytes) > frame.size()) return std::nullopt;
    at += Padded(*bytes);
  }
  if (at != frame.size()) return std::nullopt;
  offsets.push_back(at);
  return offsets;
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
  CADRE_RETURN_IF_ERROR(Fill(Padded(MaxCodedBytes(CodecOf(unit, codec_), std::ssize(values)))));
  absl::string_view rest = absl::string_view(buffer_).substr(begin_);
  CADRE_RETURN_IF_ERROR(DecodeUnit(unit, codec_, &rest, values));
  begin_ = buffer_.size() - rest.size();
  return absl::OkStatus();
}

absl::Status FrameReader::CheckEnd() const { return CheckEndAt(done(), bytes_); }

absl::Status DecodeFrame(std::span<const ExchangeUnit> units, const Codec& codec,
                         absl::string_view frame, std::span<float> values) {
  absl::string_view rest = frame;
  for (const ExchangeUnit& unit : units) {
    const size_t size = unit.positions.size();
    CADRE_RETURN_IF_ERROR(DecodeUnit(unit, codec, &rest, values.first(size)));
    values = values.subspan(size);
  }
  return CheckEndAt(frame.size() - rest.size(), frame.size());
}

absl::Status DecodeFrame(std::span<const ExchangeUnit> units, const Codec& codec,
                         absl::string_view frame, std::vector<float>* values) {
  int64_t size = 0;
  for (const ExchangeUnit& unit : units) size += unit.positions.size();
  values->resize(size);
  return DecodeFrame(units, codec, frame, std::span(*values));
}

}  // namespace cadre
