// For whom a device's memory is asked, so that a message about lack of it says so
// (Device::set_asking).
//
// Thread-compatible, as the device.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "device/device.h"
#include "spec/ownership.h"
#include "spec/parameter_index.h"
#include "spec/tape.h"

namespace cadre {

// While it lives, and until somebody else says otherwise, memory is asked for `who`; then for
// nobody. Borrows the device.
class Asking {
 public:
  Asking(Device& device, absl::string_view who) : device_(device) { device_.set_asking(who); }
  // Names somebody later.
  explicit Asking(Device& device) : device_(device) {}
  ~Asking() { device_.set_asking(""); }
  Asking(const Asking&) = delete;
  Asking& operator=(const Asking&) = delete;

 private:
  Device& device_;
};

// "layer 'fc6'".
std::string LayerForPeople(absl::string_view layer);
// A bucket by its largest parameter here: "layer 'fc6'", "layer 'fc6' and 2 others".
std::string BucketForPeople(const ParameterIndex& index, const BucketOwnership& bucket);
// Position in the graph of the layer at whose operation most of the tape's memory is in use.
// Requires: the tape has operations.
int LayerAtPeak(const Tape& tape);

}  // namespace cadre
