// The rules are those of ranks that execute placed layers (comm/send_queue.h): a device runs
// one operator, sends one message and receives one message at a time, each concurrently with the
// others. So a message begins when its data is computed and both the sender and the receiver are
// free. Messages without a sender or a receiver in common do not wait for one another. On list
// scheduling with such messages, see Sinnen and Sousa, "Communication contention in task
// scheduling", IEEE TPDS 16, 2005; Pal et al. 2019 have no contention.
//
// The inputs of an operator are received one after the other: with gaps in the order in which they
// were computed, otherwise in the order of its edges. Without gaps a message waits for all that
// were placed before it, also for those whose data is computed later. This is what ranks do that
// execute layers in the order of the model.
//
// Cost: linear in the operator's inputs, times the logarithm of the intervals of its devices and
// the gaps that are too short.
#include "plan/placement/schedule_builder.h"

#include <algorithm>

namespace cadre {

double ScheduleBuilder::Timeline::EarliestStart(double ready, double seconds,
                                                bool uses_gaps) const {
  if (!uses_gaps) return intervals_.empty() ? ready : std::max(ready, intervals_.back().second);
  auto next = std::partition_point(intervals_.begin(), intervals_.end(),
                                   [&](const auto& interval) { return interval.second <= ready; });
  double start = ready;
  for (; next != intervals_.end() && start + seconds > next->first; ++next) {
    start = std::max(start, next->second);
  }
  return start;
}

void ScheduleBuilder::Timeline::Occupy(double start, double seconds) {
  const std::pair<double, double> interval(start, start + seconds);
  intervals_.insert(std::upper_bound(intervals_.begin(), intervals_.end(), interval), interval);
}

ScheduleBuilder::ScheduleBuilder(const PlacementProblem& problem, bool uses_gaps)
    : problem_(problem),
      uses_gaps_(uses_gaps),
      schedule_{.device = std::vector<int>(problem.ops.size(), -1),
                .start = std::vector<double>(problem.ops.size(), 0),
                .sent = std::vector<double>(problem.edges.size(), 0)},
      devices_(problem.devices.size()) {}

double ScheduleBuilder::Receive(int op, int device) {
  messages_.clear();
  double ready = 0;
  for (const int e : problem_.in[op]) {
    const int from = problem_.edge(e).from;
    const double end = EndOf(from);
    const double seconds = problem_.TransferSeconds(e, schedule_.device[from], device);
    messages_.push_back({.edge = e, .start = end, .seconds = seconds});
    if (seconds == 0) ready = std::max(ready, end);
  }
  if (uses_gaps_) {
    std::stable_sort(messages_.begin(), messages_.end(),
                     [](const Message& a, const Message& b) { return a.start < b.start; });
  }
  const Timeline& receives = devices_[device].receives;
  double received = 0;
  for (Message& message : messages_) {
    if (message.seconds == 0) continue;
    const int from = schedule_.device[problem_.edge(message.edge).from];
    const Timeline& sends = devices_[from].sends;
    double start = std::max(message.start, received);
    // The earliest time at which both are free.
    for (bool both = false; !both;) {
      const double sender = sends.EarliestStart(start, message.seconds, uses_gaps_);
      start = receives.EarliestStart(sender, message.seconds, uses_gaps_);
      both = start == sender;
    }
    message.start = start;
    received = start + message.seconds;
  }
  return std::max(ready, received);
}

double ScheduleBuilder::EarliestStart(int op, int device) {
  return devices_[device].computes.EarliestStart(Receive(op, device), problem_.Seconds(op, device),
                                                 uses_gaps_);
}

void ScheduleBuilder::Place(int op, int device) {
  const double seconds = problem_.Seconds(op, device);
  const double start = EarliestStart(op, device);
  for (const Message& message : messages_) {
    schedule_.sent[message.edge] = message.start;
    if (message.seconds == 0) continue;
    const int from = schedule_.device[problem_.edge(message.edge).from];
    devices_[from].sends.Occupy(message.start, message.seconds);
    devices_[device].receives.Occupy(message.start, message.seconds);
  }
  devices_[device].computes.Occupy(start, seconds);
  schedule_.device[op] = device;
  schedule_.start[op] = start;
  schedule_.makespan = std::max(schedule_.makespan, start + seconds);
}

}  // namespace cadre
