// What the coordinator reports of a group as short texts, for the tables of `cadre describe` and
// the summary of a run, and notes on the time of its steps.
//
// Thread-safe (pure functions), except PredictionNotes, which is thread-compatible.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "proto/cadre/v1/control.pb.h"

namespace cadre {

// Whether a worker of another group computes on a host and device of this group. The prediction of
// a step does not account for that.
bool SharesDevices(const v1::GroupStatus& group, const v1::StatusReply& status);

// The texts below are "" if nothing is known yet.

// "data=1,model=2", and whether layers are placed, if the plan is known (in details of a run).
std::string MeshText(const v1::GroupStatus& group);
// "10.0 us, 1.25 GB/s, tcp".
std::string LinkText(const v1::GroupStatus& group);
// "4 buckets: ring 2, halving-doubling 2".
std::string BucketsText(const v1::GroupStatus& group);
// "-12%": the step was predicted to be 12% shorter than it is.
std::string ErrorText(const v1::GroupStatus& group);
// "41 ms, 6% waiting".
std::string StepText(const v1::GroupStatus& group);

// Notes on the time that the steps of a group take, compared with the prediction. A group measures
// this time repeatedly, and every update carries the latest measurement.
class PredictionNotes {
 public:
  // A line for each group with a measurement that no earlier call returned, such as
  // "run-1  group 0  a step takes 41 ms, 30 ms predicted (-27%); compute: layers took ...".
  std::vector<std::string> New(const v1::WatchUpdate& update);

 private:
  // Generation and step seconds of the latest note, by run and group.
  std::map<std::pair<std::string, uint32_t>, std::pair<uint32_t, double>> noted_;
};

}  // namespace cadre
