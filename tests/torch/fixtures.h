// Tensors by name from a file of tests/torch.
//
// Thread-compatible. What a test asks for and the file does not have is a bug of the test or of the
// script that made the file, and ends it.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "model/formats/safetensors.h"

namespace cadre {

class Fixtures {
 public:
  // Errors: as SafetensorsFile::Open.
  static absl::StatusOr<Fixtures> Open(const std::string& path);

  bool Has(const std::string& name) const { return file_.Find(name) != nullptr; }
  // Requires: Has(name).
  std::vector<float> Read(const std::string& name);
  // Requires: Has(name).
  Shape ShapeOf(const std::string& name) const;
  // Names that begin with `prefix`, without it.
  std::vector<std::string> NamesUnder(const std::string& prefix) const;
  // What the script wrote beside the tensors.
  const std::map<std::string, std::string>& texts() const { return file_.metadata(); }

 private:
  explicit Fixtures(SafetensorsFile file) : file_(std::move(file)) {}

  SafetensorsFile file_;
};

// The largest difference of the two, over the largest of `want`; over 1 where that is 0. Infinite
// where the sizes differ or a difference is not a number.
double RelativeDifference(std::span<const float> got, std::span<const float> want);

}  // namespace cadre
