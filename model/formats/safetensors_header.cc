// The JSON header of safetensors files: {"name": {"dtype", "shape", "data_offsets"}, ...}.
//
// Files may come from anywhere, so nothing in them is trusted: names and fields must be unique,
// sizes must match shapes without overflow, and the tensors must cover the data without gaps or
// overlaps, as the format requires. A reader can then take any tensor's bytes without further
// checks. The JSON parser's own message would quote the header, which may be 100 MB; the message
// here states the position instead.
#include "model/formats/safetensors_header.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "model/problem.h"

namespace cadre {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kMetadata[] = "__metadata__";
constexpr int64_t kHighest = std::numeric_limits<int64_t>::max();
constexpr size_t kDataAlignment = 8;

// Receives the events of the JSON parser. Unlike a tree, events show repeated names, and parsing
// stops before memory is used for a header beyond the limits. Methods return false to stop.
class HeaderEvents {
 public:
  using number_integer_t = Json::number_integer_t;
  using number_unsigned_t = Json::number_unsigned_t;
  using number_float_t = Json::number_float_t;
  using string_t = Json::string_t;
  using binary_t = Json::binary_t;

  SafetensorsHeader header;
  std::string problem;

  bool start_object(size_t) {
    fields_.clear();
    if (place_ == Place::kBefore) return Enter(Place::kTop);
    if (place_ == Place::kTop && key_ == kMetadata) return Enter(Place::kMetadata);
    if (place_ == Place::kTop) {
      header.tensors.push_back({.name = key_});
      return Enter(Place::kTensor);
    }
    return Unexpected("an object");
  }

  bool key(string_t& name) {
    std::set<std::string>& seen = place_ == Place::kTop ? names_ : fields_;
    if (!seen.insert(name).second) {
      return Fail(place_ == Place::kTop
                      ? absl::StrCat("tensor ", Quoted(name), " is repeated")
                      : absl::StrCat(Where(), "field ", Quoted(name), " is repeated"));
    }
    key_ = std::move(name);
    return true;
  }

  bool end_object() {
    if (place_ == Place::kMetadata) return Enter(Place::kTop);
    if (place_ == Place::kTop) return Enter(Place::kAfter);
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      if (!fields_.contains(field)) return Fail(absl::StrCat(Where(), "has no ", field));
    }
    return Enter(Place::kTop);
  }

  bool start_array(size_t) {
    if (place_ != Place::kTensor || (key_ != "shape" && key_ != "data_offsets")) {
      return Unexpected("a list");
    }
    numbers_.clear();
    return Enter(Place::kList);
  }

  bool end_array() {
    StoredTensor& tensor = header.tensors.back();
    if (key_ == "shape") {
      tensor.shape = Shape(std::exchange(numbers_, {}));
      return Enter(Place::kTensor);
    }
    if (numbers_.size() != 2) {
      return Fail(absl::StrCat(Where(), "data_offsets has ", numbers_.size(), " numbers, not 2"));
    }
    tensor.begin = numbers_[0];
    tensor.end = numbers_[1];
    return Enter(Place::kTensor);
  }

  bool number_unsigned(number_unsigned_t number) {
    if (place_ != Place::kList) return Unexpected("a number");
    if (number > number_unsigned_t{kHighest}) {
      return Fail(absl::StrCat(Where(), key_, " has ", number, ", which is too large"));
    }
    if (numbers_.size() == kMaxTensorDims) {
      return Fail(absl::StrCat(Where(), key_, " has more than ", kMaxTensorDims, " numbers"));
    }
    numbers_.push_back(number);
    return true;
  }

  bool string(string_t& text) {
    if (place_ == Place::kMetadata) {
      header.metadata[key_] = std::move(text);
      return true;
    }
    if (place_ != Place::kTensor || key_ != "dtype") return Unexpected("a string");
    if (text.empty()) return Fail(absl::StrCat(Where(), "has an empty dtype"));
    header.tensors.back().type = std::move(text);
    return true;
  }

  bool null() { return Unexpected("null"); }
  bool boolean(bool) { return Unexpected("true or false"); }
  bool number_integer(number_integer_t) { return Unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) {
    return Unexpected("a number that is not an integer or too large");
  }
  bool binary(binary_t&) { return Unexpected("binary data"); }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) {
    return Fail(absl::StrCat("the header is not JSON at its byte ", position));
  }

 private:
  // Position in the header: before it, in the outermost object, in the metadata, in a tensor,
  // in a list of a tensor, or after the header.
  enum class Place { kBefore, kTop, kMetadata, kTensor, kList, kAfter };

  bool Enter(Place place) {
    place_ = place;
    return true;
  }
  bool Fail(std::string message) {
    problem = std::move(message);
    return false;
  }
  bool Unexpected(absl::string_view what) {
    return Fail(absl::StrCat(Where(), "has ", what, ", which is not allowed here"));
  }
  std::string Where() const {
    if (place_ == Place::kTensor || place_ == Place::kList) {
      return absl::StrCat("tensor ", Quoted(header.tensors.back().name), ": ");
    }
    if (place_ == Place::kMetadata) return absl::StrCat(kMetadata, ": ");
    if (place_ == Place::kTop) return absl::StrCat("tensor ", Quoted(key_), ": ");
    return "the header ";
  }

  Place place_ = Place::kBefore;
  std::string key_;
  std::set<std::string> names_;
  // Names in the current tensor, or in the metadata.
  std::set<std::string> fields_;
  std::vector<int64_t> numbers_;
};

// False if the number of bytes of the tensor overflows. An element of an unknown type counts as one
// byte.
bool BytesOf(const StoredTensor& tensor, int64_t* bytes) {
  *bytes = std::max<int64_t>(1, ElementBytes(tensor.type));
  for (const int64_t extent : tensor.shape.dims()) {
    if (__builtin_mul_overflow(*bytes, extent, bytes)) return false;
  }
  return true;
}

// The problem of one tensor, or an empty string.
std::string CheckTensor(const StoredTensor& tensor, int64_t data_bytes) {
  int64_t bytes = 0;
  if (!BytesOf(tensor, &bytes)) {
    return absl::StrCat("shape ", tensor.shape.ToString(), " is too large");
  }
  if (tensor.begin > tensor.end || tensor.end > data_bytes) {
    return absl::StrCat("bytes [", tensor.begin, ", ", tensor.end, ") do not lie in the file's ",
                        data_bytes, " bytes of data");
  }
  if (ElementBytes(tensor.type) != 0 && tensor.end - tensor.begin != bytes) {
    return absl::StrCat("has ", tensor.end - tensor.begin, " bytes; ", tensor.type, " ",
                        tensor.shape.ToString(), " takes ", bytes);
  }
  return "";
}

// Sorts by position and finds overlaps and gaps.
std::string CheckPositions(std::vector<StoredTensor>& tensors, int64_t data_bytes) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  int64_t next = 0;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.begin < next) {
      return absl::StrCat("tensor ", Quoted(tensor.name), ": overlaps the previous tensor");
    }
    if (tensor.begin > next) {
      return absl::StrCat("tensor ", Quoted(tensor.name), ": ", tensor.begin - next,
                          " bytes before it belong to no tensor");
    }
    next = tensor.end;
  }
  if (next != data_bytes) {
    return absl::StrCat(data_bytes - next, " bytes after the last tensor");
  }
  return "";
}

}  // namespace

// Sizes are known of more types than can be read. A file with tensors of other types, also of types
// that came later (F4, F8_E4M3FNUZ), is valid as long as these tensors are not needed.
int64_t ElementBytes(absl::string_view type) {
  static constexpr std::pair<absl::string_view, int64_t> kTypes[] = {
      {"F32", 4},  {"F16", 2}, {"BF16", 2},    {"F64", 8},     {"I64", 8},     {"I32", 4},
      {"I16", 2},  {"I8", 1},  {"U64", 8},     {"U32", 4},     {"U16", 2},     {"U8", 1},
      {"BOOL", 1}, {"C64", 8}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1},
  };
  for (const auto& [name, bytes] : kTypes) {
    if (name == type) return bytes;
  }
  return 0;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view file,
                                                         absl::string_view json,
                                                         int64_t data_bytes) {
  const auto fail = [&](absl::string_view problem) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": ", problem));
  };
  // The parser would accept spaces and a byte order mark.
  if (json.empty() || json.front() != '{') return fail("the header does not begin with '{'");
  HeaderEvents events;
  if (!Json::sax_parse(json.begin(), json.end(), &events)) return fail(events.problem);
  for (const StoredTensor& tensor : events.header.tensors) {
    const std::string problem = CheckTensor(tensor, data_bytes);
    if (!problem.empty()) return fail(absl::StrCat("tensor ", Quoted(tensor.name), ": ", problem));
  }
  const std::string problem = CheckPositions(events.header.tensors, data_bytes);
  if (!problem.empty()) return fail(problem);
  return std::move(events.header);
}

absl::string_view TypeName(FloatType type) {
  switch (type) {
    case FloatType::kBF16:
      return "BF16";
    case FloatType::kF16:
      return "F16";
    case FloatType::kF32:
      break;
  }
  return "F32";
}

absl::StatusOr<FloatType> ParseFloatType(absl::string_view name) {
  if (name == "fp32") return FloatType::kF32;
  if (name == "bf16") return FloatType::kBF16;
  if (name == "fp16") return FloatType::kF16;
  return absl::InvalidArgumentError(
      absl::StrCat("the type ", Quoted(name), " is not fp32, bf16 or fp16"));
}

absl::StatusOr<std::string> FormatSafetensorsHeader(
    const std::vector<NamedShape>& tensors, const std::map<std::string, std::string>& metadata,
    FloatType type) {
  Json header = Json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  int64_t begin = 0;
  std::set<std::string> names = {kMetadata};
  for (const NamedShape& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("the name ", Quoted(tensor.name), " is repeated or reserved"));
    }
    const int64_t end = begin + tensor.shape.elements() * ElementBytes(TypeName(type));
    header[tensor.name] = {{"dtype", std::string(TypeName(type))},
                           {"shape", tensor.shape.dims()},
                           {"data_offsets", {begin, end}}};
    begin = end;
  }
  // Bytes that are not UTF-8 become U+FFFD; otherwise the library would throw.
  std::string json = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  json.resize((json.size() + kDataAlignment - 1) / kDataAlignment * kDataAlignment, ' ');
  static_assert(std::endian::native == std::endian::little);
  const uint64_t length = json.size();
  return absl::StrCat(absl::string_view(reinterpret_cast<const char*>(&length), sizeof(length)),
                      json);
}

}  // namespace cadre
