// Makes a schedule operator by operator: when each one begins, and when its inputs are sent.
// schedule_builder.cc states the rules.
//
// A value; thread-compatible.
#pragma once

#include <utility>
#include <vector>

#include "plan/placement/placement_problem.h"

namespace cadre {

class ScheduleBuilder {
 public:
  // Borrows the problem. `uses_gaps`: operators and messages may begin before those that were
  // placed earlier.
  ScheduleBuilder(const PlacementProblem& problem, bool uses_gaps);

  // The earliest start of the operator on the device. Requires: its predecessors are placed.
  double EarliestStart(int op, int device);
  // Begins the operator at this time. Requires: as EarliestStart; `op` is not placed.
  void Place(int op, int device);

  OperatorSchedule Take() { return std::move(schedule_); }

 private:
  // The intervals in which a device computes, sends or receives, in order of time.
  class Timeline {
   public:
    // The earliest time from `ready` on at which `seconds` are free; without gaps, after all
    // intervals.
    double EarliestStart(double ready, double seconds, bool uses_gaps) const;
    void Occupy(double start, double seconds);

   private:
    std::vector<std::pair<double, double>> intervals_;
  };
  struct DeviceTimes {
    Timeline computes;
    Timeline sends;
    Timeline receives;
  };
  struct Message {
    int edge = 0;
    double start = 0;
    double seconds = 0;
  };

  double EndOf(int op) const {
    return schedule_.start[op] + problem_.Seconds(op, schedule_.device[op]);
  }
  // Puts the messages that the operator's inputs require into messages_. Returns the time at which
  // all inputs have arrived.
  double Receive(int op, int device);

  const PlacementProblem& problem_;
  const bool uses_gaps_;
  OperatorSchedule schedule_;
  std::vector<DeviceTimes> devices_;
  std::vector<Message> messages_;
};

}  // namespace cadre
