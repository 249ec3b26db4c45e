// Labels device allocations, so that an out-of-memory message names what the memory was for
// (Device::set_allocation_label).
//
// Thread-compatible, as the device.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "device/device.h"
#include "model/parameter_index.h"
#include "plan/ownership.h"
#include "plan/tape.h"

namespace cadre {

// Sets the label in its constructor and clears it in its destructor. Borrows the device.
class AllocationLabel {
 public:
  AllocationLabel(Device& device, absl::string_view label) : device_(device) {
    device_.set_allocation_label(label);
  }
  // The label is set later, by the device's own setter.
  explicit AllocationLabel(Device& device) : device_(device) {}
  ~AllocationLabel() { device_.set_allocation_label(""); }
  AllocationLabel(const AllocationLabel&) = delete;
  AllocationLabel& operator=(const AllocationLabel&) = delete;

 private:
  Device& device_;
};

// "layer 'fc6'".
std::string LayerDisplayName(absl::string_view layer);
// A bucket, named by its largest parameter on this rank: "layer 'fc6' and 2 others".
std::string BucketDisplayName(const ParameterIndex& index, const BucketOwnership& bucket);
// The layer (its position in the graph) during whose operation the tape uses the most memory.
// Requires: the tape has operations.
int LayerAtPeak(const Tape& tape);

}  // namespace cadre
