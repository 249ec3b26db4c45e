// Reading and writing of safetensors files (github.com/huggingface/safetensors, format description
// in its README).
//
// Idea. The header lists the byte range of every tensor, so ranks read only their own elements: a
// rank of a group calls Read() for its ranges, and no process needs memory for the whole model.
// Headers are not trusted. The reader limits their length before allocating, parses them by events
// instead of a tree (safetensors_header.cc), and verifies that the tensors exactly cover the rest
// of the file. After that no offset can exceed the file, and Read() only needs to check whether the
// file was truncated in the meantime.
//
// The writer is sequential, so that group members can send their parts to one rank in parameter
// order and that rank needs one buffer only. AtomicFile makes the result visible in one step.
//
// Cost. fp32 is read directly into the destination. F16, BF16 and F64 are converted in blocks of
// kConvertElements. Limits. Little-endian hosts only; integer, FP8 and complex tensors, and those
// of types that this reader does not know, are listed but cannot be read as fp32.
#include "model/formats/safetensors.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/file_format.h"
#include "base/status.h"
#include "glog/logging.h"
#include "model/problem.h"
#include "tensor/elements.h"

namespace cadre {
namespace {

static_assert(std::endian::native == std::endian::little, "the format's numbers are little-endian");

constexpr int64_t kLengthBytes = 8;
// The number of elements in a block that is read and converted at once.
constexpr size_t kConvertElements = 16384;

template <typename T>
T Load(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

float FromBrain(const char* bytes) {
  return std::bit_cast<float>(uint32_t{Load<uint16_t>(bytes)} << 16);
}

// 1 sign, 5 exponent (bias 15) and 10 fraction bits.
float FromHalf(const char* bytes) {
  const uint16_t half = Load<uint16_t>(bytes);
  const uint32_t sign = uint32_t{half & 0x8000U} << 16;
  const uint32_t exponent = (half >> 10) & 0x1fU;
  const uint32_t fraction = half & 0x3ffU;
  if (exponent == 0) {  // subnormal: fraction * 2^-24, exact in fp32
    const float value = std::ldexp(1.0F * fraction, -24);
    return sign != 0 ? -value : value;
  }
  const uint32_t wide = exponent == 0x1f ? 0xff : exponent + (127 - 15);
  return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
}

uint16_t ToHalf(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000U;
  const uint32_t magnitude = bits & 0x7fffffffU;
  constexpr uint32_t kInfinity = 0x7c00;
  if (magnitude > 0x7f800000U) return sign | kInfinity | 0x200;  // NaN
  if (magnitude >= 0x47800000U) return sign | kInfinity;         // from 2^16 on
  if (magnitude < 0x38800000U) {
    // Below 2^-14, a multiple of 2^-24, the unit in the last place of the floats from 0.5 to 1: the
    // sum is rounded as required.
    const float sum = std::bit_cast<float>(magnitude) + 0.5F;
    return sign | (std::bit_cast<uint32_t>(sum) - std::bit_cast<uint32_t>(0.5F));
  }
  // A carry into the exponent is right, also that to infinity.
  const uint32_t rounded = (magnitude + 0xfff + (magnitude >> 13 & 1)) >> 13;
  return sign | (rounded - ((127 - 15) << 10));
}

float FromDouble(const char* bytes) { return Load<double>(bytes); }

using Converter = float (*)(const char*);

// Null for types that are not read.
Converter ConverterOf(absl::string_view type) {
  if (type == "F16") return FromHalf;
  if (type == "BF16") return FromBrain;
  if (type == "F64") return FromDouble;
  return nullptr;
}

}  // namespace

// An open file.
class SafetensorsFile::File {
 public:
  File(std::string path, const RegularFile& file) : path_(std::move(path)), file_(file) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { close(file_.fd); }

  const std::string& path() const { return path_; }
  int64_t size() const { return file_.bytes; }

  // Fills `bytes` from `offset` on.
  absl::Status Read(int64_t offset, std::span<char> bytes) const {
    while (!bytes.empty()) {
      const ssize_t n = pread(file_.fd, bytes.data(), bytes.size(), offset);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoStatus(errno, "read", path_);
      if (n == 0) {
        return absl::DataLossError(absl::StrCat(path_, ": was truncated while it was read"));
      }
      bytes = bytes.subspan(n);
      offset += n;
    }
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  const RegularFile file_;
};

SafetensorsFile::SafetensorsFile(std::unique_ptr<File> file) : file_(std::move(file)) {}
SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;

const std::string& SafetensorsFile::name() const { return file_->path(); }

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path,
                                                      const RootedFiles& files) {
  CADRE_ASSIGN_OR_RETURN(const RegularFile regular, OpenRegularFile(path, files));
  SafetensorsFile file(std::make_unique<File>(path, regular));
  const absl::Status status = file.ReadHeader();
  if (!absl::IsInvalidArgument(status)) {
    CADRE_RETURN_IF_ERROR(status);
    return file;
  }
  // The header's error would be that of a file of another format.
  std::string first(std::min<int64_t>(regular.bytes, kFormatBytes), '\0');
  CADRE_RETURN_IF_ERROR(file.file_->Read(0, first));
  const std::string note = FormatNote(first, kSafetensorsFormat);
  if (note.empty()) return status;
  return absl::InvalidArgumentError(absl::StrCat(path, ": is not a safetensors file", note));
}

bool SafetensorsFile::CanRead(absl::string_view type) {
  return type == "F32" || ConverterOf(type) != nullptr;
}

absl::Status SafetensorsFile::ReadHeader() {
  const int64_t size = file_->size();
  const auto truncated = [&](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat(name(), ": ", what, "; the file's ", size, " bytes are not enough"));
  };
  if (size < kLengthBytes) return truncated("a safetensors file begins with 8 bytes of length");
  std::array<char, kLengthBytes> length_bytes;
  CADRE_RETURN_IF_ERROR(file_->Read(0, length_bytes));
  const auto length = Load<uint64_t>(length_bytes.data());
  if (length > uint64_t{kMaxHeaderBytes}) {
    return absl::InvalidArgumentError(
        absl::StrCat(name(), ": is not a safetensors file, or has a header of ", length,
                     " bytes; at most ", kMaxHeaderBytes, " are read"));
  }
  data_ = kLengthBytes + length;
  if (data_ > size) return truncated(absl::StrCat("the header has ", length, " bytes"));
  std::string json(length, '\0');
  CADRE_RETURN_IF_ERROR(file_->Read(kLengthBytes, json));
  CADRE_ASSIGN_OR_RETURN(header_, ParseSafetensorsHeader(name(), json, size - data_));
  for (size_t i = 0; i < header_.tensors.size(); ++i) by_name_[header_.tensors[i].name] = i;
  return absl::OkStatus();
}

const StoredTensor* SafetensorsFile::Find(absl::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &header_.tensors[it->second];
}

absl::Status SafetensorsFile::Read(const StoredTensor& tensor, int64_t first,
                                   std::span<float> values) {
  const int64_t count = values.size();
  CHECK(first >= 0 && first + count <= tensor.shape.elements());
  const int64_t width = ElementBytes(tensor.type);
  const int64_t begin = data_ + tensor.begin + first * width;
  if (tensor.type == "F32") {
    return Annotate(
        file_->Read(begin, {reinterpret_cast<char*>(values.data()), values.size_bytes()}),
        absl::StrCat("tensor ", Quoted(tensor.name)));
  }
  const Converter convert = ConverterOf(tensor.type);
  if (convert == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(name(), ": tensor ", Quoted(tensor.name), ": ",
                                                   Quoted(tensor.type),
                                                   " instead of F32, F16, BF16 or F64"));
  }
  std::vector<char> bytes(std::min(values.size(), kConvertElements) * width);
  for (size_t done = 0; done < values.size(); done += kConvertElements) {
    const size_t n = std::min(kConvertElements, values.size() - done);
    const std::span<char> part = std::span(bytes).first(n * width);
    CADRE_RETURN_IF_ERROR(Annotate(file_->Read(begin + done * width, part),
                                   absl::StrCat("tensor ", Quoted(tensor.name))));
    for (size_t i = 0; i < n; ++i) {
      values[done + i] = convert(part.data() + i * width);
    }
  }
  return absl::OkStatus();
}

std::map<std::string, std::string> TorchMetadata() { return {{"format", "pt"}}; }

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Create(
    const std::string& path, const std::vector<NamedShape>& tensors,
    const std::map<std::string, std::string>& metadata, FloatType type) {
  absl::StatusOr<std::string> header = FormatSafetensorsHeader(tensors, metadata, type);
  if (!header.ok()) return Annotate(header.status(), path);
  int64_t elements = 0;
  for (const NamedShape& tensor : tensors) elements += tensor.shape.elements();
  CADRE_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  CADRE_RETURN_IF_ERROR(file.Append(*header));
  return SafetensorsWriter(std::move(file), tensors, elements, type);
}

absl::Status SafetensorsWriter::Append(std::span<const float> values) {
  CHECK_GE(missing_, std::ssize(values)) << file_.path() << " gets more than its tensors hold";
  if (type_ != FloatType::kF32) return AppendRounded(values);
  missing_ -= std::ssize(values);
  return file_.Append({reinterpret_cast<const char*>(values.data()), values.size_bytes()});
}

absl::Status SafetensorsWriter::AppendRounded(std::span<const float> values) {
  const bool brain = type_ == FloatType::kBF16;
  std::vector<uint16_t> rounded(std::min(values.size(), kConvertElements));
  while (!values.empty()) {
    const size_t n = std::min(values.size(), kConvertElements);
    for (size_t i = 0; i < n; ++i) {
      rounded[i] = brain ? RoundToBf16(values[i]).bits : ToHalf(values[i]);
      const uint16_t infinity = brain ? 0x7f80 : 0x7c00;
      if ((rounded[i] & 0x7fff) == infinity && std::isfinite(values[i])) {
        return TooLarge(elements_ - missing_ + static_cast<int64_t>(i), values[i]);
      }
    }
    missing_ -= static_cast<int64_t>(n);
    CADRE_RETURN_IF_ERROR(
        file_.Append({reinterpret_cast<const char*>(rounded.data()), n * sizeof(uint16_t)}));
    values = values.subspan(n);
  }
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::TooLarge(int64_t position, float value) const {
  size_t i = 0;
  while (position >= tensors_[i].shape.elements()) position -= tensors_[i++].shape.elements();
  return absl::OutOfRangeError(absl::StrCat(file_.path(), ": element ", position, " of tensor ",
                                            Quoted(tensors_[i].name), " is ", value,
                                            ", which is too large for ", TypeName(type_)));
}

absl::Status SafetensorsWriter::Finish() {
  CHECK_EQ(missing_, 0) << "elements of " << file_.path() << " are missing";
  return file_.Commit();
}

absl::Status WriteSafetensors(const std::string& path, const std::vector<NamedShape>& tensors,
                              std::span<const float> values,
                              const std::map<std::string, std::string>& metadata, FloatType type) {
  CADRE_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                         SafetensorsWriter::Create(path, tensors, metadata, type));
  CADRE_RETURN_IF_ERROR(writer.Append(values));
  return writer.Finish();
}

}  // namespace cadre
