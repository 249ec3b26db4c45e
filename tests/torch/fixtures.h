// Tensors by name from a file of tests/torch.
//
// Thread-compatible. A missing file or tensor is a bug of the test, or of the script that wrote the
// file, and ends the test program.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "model/formats/safetensors.h"

namespace cadre {

// Folder of the fixtures and run files: the program's argument --fixtures=FOLDER.
std::string FixturesFolder();

class Fixtures {
 public:
  // Opens a file of FixturesFolder().
  explicit Fixtures(const std::string& file);

  bool Has(const std::string& name) const { return file_.Find(name) != nullptr; }
  // Requires: Has(name).
  std::vector<float> Read(const std::string& name);
  // Requires: Has(name).
  Shape ShapeOf(const std::string& name) const;
  // Names that begin with `prefix`, without it.
  std::vector<std::string> NamesUnder(const std::string& prefix) const;
  // The metadata that the script wrote.
  const std::map<std::string, std::string>& texts() const { return file_.metadata(); }

 private:
  SafetensorsFile file_;
};

// The largest difference, relative to the largest element of `expected` (absolute if that is 0).
// Infinite if the sizes differ or a difference is not finite.
double RelativeDifference(std::span<const float> actual, std::span<const float> expected);

}  // namespace cadre
