#include "cli/import/onnx_file.h"

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/file_format.h"
#include "base/rooted_files.h"
#include "base/status.h"
#include "cli/import/view.h"
#include "model/problem.h"

namespace cadre {
namespace {

constexpr int64_t kMinOpset = 13;
constexpr int64_t kMaxFileBytes = (int64_t{1} << 31) - 1;
// Limit of one tensor: that of the weights of one layer (model/ops/inference.h).
constexpr int64_t kMaxTensorElements = int64_t{1} << 31;

enum DataType {
  kFloat = 1,
  kUint8 = 2,
  kInt8 = 3,
  kInt32 = 6,
  kInt64 = 7,
  kBool = 9,
  kDouble = 11
};

int64_t BytesOf(int type) {
  switch (type) {
    case kUint8:
    case kInt8:
    case kBool:
      return 1;
    case kFloat:
    case kInt32:
      return 4;
    case kInt64:
    case kDouble:
      return 8;
    default:
      return 0;
  }
}

template <typename... Parts>
absl::Status Bad(const onnx::Tensor& tensor, const Parts&... what) {
  return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(tensor.name()), " ", what...));
}

template <typename T, typename To>
void Unpack(absl::string_view bytes, std::vector<To>& to) {
  to.reserve(bytes.size() / sizeof(T));
  for (size_t at = 0; at < bytes.size(); at += sizeof(T)) {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    to.push_back(static_cast<To>(value));
  }
}

void UnpackAs(int type, absl::string_view bytes, OnnxTensor& to) {
  switch (type) {
    case kFloat:
      return Unpack<float>(bytes, to.floats);
    case kDouble:
      return Unpack<double>(bytes, to.numbers);
    case kInt64:
      return Unpack<int64_t>(bytes, to.numbers);
    case kInt32:
      return Unpack<int32_t>(bytes, to.numbers);
    case kInt8:
      return Unpack<int8_t>(bytes, to.numbers);
    default:
      return Unpack<uint8_t>(bytes, to.numbers);
  }
}

// The bytes of a tensor in another file.
absl::StatusOr<std::string> ReadExternal(const onnx::Tensor& tensor, const std::string& folder,
                                         const std::string& linked_folder, int64_t bytes) {
  std::string location;
  int64_t offset = 0, length = bytes;
  for (const onnx::Entry& entry : tensor.external_data()) {
    if (entry.key() == "location") location = entry.value();
    if (entry.key() == "offset" && !absl::SimpleAtoi(entry.value(), &offset)) {
      return Bad(tensor, "has offset ", Quoted(entry.value()), ", which is not a number");
    }
    if (entry.key() == "length" && !absl::SimpleAtoi(entry.value(), &length)) {
      return Bad(tensor, "has length ", Quoted(entry.value()), ", which is not a number");
    }
  }
  if (folder.empty() || location.empty() || offset < 0 || length != bytes) {
    return Bad(tensor, "is in file ", Quoted(location), ", from byte ", offset, ", with ", length,
               " bytes; its extents need ", bytes);
  }
  // The format forbids it, and the linked folder may contain that of the model.
  for (const std::filesystem::path& part : std::filesystem::path(location)) {
    if (part == "..") return Bad(tensor, "is in file ", Quoted(location), ", outside its folder");
  }
  std::vector<std::string> roots = {folder};
  if (!linked_folder.empty()) roots.push_back(linked_folder);
  CADRE_ASSIGN_OR_RETURN(const RootedFiles files, RootedFiles::Open("the model's folder", roots));
  CADRE_ASSIGN_OR_RETURN(const RegularFile file, OpenRegularFile(folder + "/" + location, files));
  std::string data;
  if (offset <= file.bytes - bytes) {
    data.resize(bytes);
    int64_t done = 0;
    while (done < bytes) {
      const ssize_t got = pread(file.fd, data.data() + done, bytes - done, offset + done);
      if (got <= 0) break;
      done += got;
    }
    data.resize(done);
  }
  close(file.fd);
  if (std::ssize(data) == bytes) return data;
  return Bad(tensor, "needs ", bytes, " bytes from byte ", offset, " of ", Quoted(location),
             ", which has ", file.bytes);
}

}  // namespace

absl::StatusOr<OnnxTensor> DecodeTensor(const onnx::Tensor& tensor, const std::string& folder,
                                        const std::string& linked_folder) {
  OnnxTensor to{.name = tensor.name()};
  to.dims.assign(tensor.dims().begin(), tensor.dims().end());
  const int type = tensor.data_type();
  if (BytesOf(type) == 0) {
    return Bad(tensor, "has data type ", type,
               "; supported are float (1), uint8 (2), int8 (3), int32 (6), int64 (7), bool (9) and "
               "double (11)");
  }
  if (!View::IsPossible(to.dims) || ProductOf(to.dims) > kMaxTensorElements) {
    return Bad(tensor, "has impossible extents");
  }
  to.integer = type != kFloat && type != kDouble;
  const int64_t elements = ProductOf(to.dims);
  if (tensor.data_location() == 1) {
    CADRE_ASSIGN_OR_RETURN(const std::string bytes,
                           ReadExternal(tensor, folder, linked_folder, elements * BytesOf(type)));
    UnpackAs(type, bytes, to);
  } else if (!tensor.raw_data().empty()) {
    if (std::ssize(tensor.raw_data()) != elements * BytesOf(type)) {
      return Bad(tensor, "has ", tensor.raw_data().size(), " bytes; its extents need ",
                 elements * BytesOf(type));
    }
    UnpackAs(type, tensor.raw_data(), to);
  } else if (type == kFloat) {
    to.floats.assign(tensor.float_data().begin(), tensor.float_data().end());
  } else if (type == kDouble) {
    to.numbers.assign(tensor.double_data().begin(), tensor.double_data().end());
  } else if (type == kInt64) {
    to.numbers.assign(tensor.int64_data().begin(), tensor.int64_data().end());
  } else {
    to.numbers.assign(tensor.int32_data().begin(), tensor.int32_data().end());
  }
  const int64_t has = type == kFloat ? std::ssize(to.floats) : std::ssize(to.numbers);
  if (has != elements) return Bad(tensor, "has ", has, " elements; its extents need ", elements);
  return to;
}

bool IsDefaultDomain(absl::string_view domain) { return domain.empty() || domain == "ai.onnx"; }

namespace {

// The version of the operators of the default domain, which determines what they compute.
absl::Status CheckOperatorSet(const onnx::Model& model) {
  std::set<int64_t> versions;
  for (const onnx::OperatorSet& set : model.opset_import()) {
    if (IsDefaultDomain(set.domain())) versions.insert(set.version());
  }
  if (versions.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("states no operator set (opset_import) of the domain ai.onnx, so that the "
                     "meaning of its operators is not known; export it with operator set ",
                     kMinOpset, " or later"));
  }
  if (versions.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "states several operator sets of the domain ai.onnx: ", absl::StrJoin(versions, ", ")));
  }
  if (*versions.begin() >= kMinOpset) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("uses operator set ", *versions.begin(),
                                                 "; export it with at least ", kMinOpset));
}

}  // namespace

absl::StatusOr<onnx::Model> ParseOnnx(absl::string_view bytes) {
  onnx::Model model;
  // An empty file is a message without fields, and so may be other files; a model states the
  // version of its format.
  const bool parsed = model.ParseFromArray(bytes.data(), bytes.size());
  const bool has_nodes = parsed && !model.graph().node().empty();
  if (!has_nodes && !(parsed && model.has_graph() && model.ir_version() > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("is not an ONNX model", FormatNote(bytes, kOnnxFormat)));
  }
  if (!has_nodes) {
    return absl::InvalidArgumentError(
        absl::StrCat("has a graph ", Quoted(model.graph().name()), " without nodes"));
  }
  if (!model.functions().empty()) {
    return absl::InvalidArgumentError(
        "has local functions; export the model without them (PyTorch inlines them by default)");
  }
  CADRE_RETURN_IF_ERROR(CheckOperatorSet(model));
  return model;
}

absl::StatusOr<onnx::Model> ReadOnnx(const std::string& path) {
  CADRE_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, kMaxFileBytes));
  auto model = ParseOnnx(bytes);
  if (!model.ok()) return Annotate(model.status(), path);
  return model;
}

}  // namespace cadre
