// The slots of one run, and the sets of those that wait, prepare and train.
//
// Pure and thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "coordinator/run/slot.h"

namespace cadre {

class Slots {
 public:
  void Add(Slot slot) {
    slots_.push_back(std::move(slot));
    Update(slots_.back());
  }

  // The slot must be waiting.
  void RemoveLast() {
    waiting_.erase(slots_.back().group());
    slots_.pop_back();
  }

  size_t size() const { return slots_.size(); }
  // Requires: group < size().
  Slot& operator[](uint32_t group) { return slots_.at(group); }
  const Slot& operator[](uint32_t group) const { return slots_.at(group); }
  auto begin() { return slots_.begin(); }
  auto end() { return slots_.end(); }
  auto begin() const { return slots_.begin(); }
  auto end() const { return slots_.end(); }

  // Groups in this state, in group order.
  using Groups = std::set<uint32_t>;
  const Groups& waiting() const { return waiting_; }
  // Groups whose ranks are all prepared.
  const Groups& prepared() const { return prepared_; }
  const Groups& started() const { return started_; }
  // Groups that train in a round that others have begun.
  const Groups& catching_up() const { return catching_up_; }

  // Must be called after every change of the slot's state.
  void Update(const Slot& slot) {
    const auto set = [&](Groups& groups, bool member) {
      if (member) {
        groups.insert(slot.group());
      } else {
        groups.erase(slot.group());
      }
    };
    set(waiting_, slot.waiting());
    set(prepared_, slot.prepared());
    set(started_, slot.started());
    set(catching_up_, slot.catches_up());
  }

 private:
  std::vector<Slot> slots_;
  Groups waiting_;
  Groups prepared_;
  Groups started_;
  Groups catching_up_;
};

}  // namespace cadre
