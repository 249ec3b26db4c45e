// A point in a device lane's work that other lanes wait for, or nothing yet.
//
// Thread-compatible.
#pragma once

#include <memory>

#include "device/device.h"

namespace cadre {

class LaneMark {
 public:
  // Is now what the device's current lane has been given.
  void Set(Device& device) {
    if (event_ == nullptr) event_ = device.MakeEvent();
    device.Record(*event_);
    set_ = true;
  }
  // The current lane waits; not at all where nothing is marked.
  void Wait(Device& device) const {
    if (set_) device.WaitFor(*event_);
  }
  // The host waits.
  absl::Status Await(Device& device) const {
    return set_ ? device.Await(*event_) : device.status();
  }
  bool set() const { return set_; }
  // What was marked is known to be over for whoever asks from now on.
  void Clear() { set_ = false; }

 private:
  std::unique_ptr<DeviceEvent> event_;
  bool set_ = false;
};

}  // namespace cadre
