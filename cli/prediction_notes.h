// Makes notes on the time that the steps of a group take, compared with the prediction.
//
// Thread-compatible.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "proto/cadre/v1/control.pb.h"

namespace cadre {

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
