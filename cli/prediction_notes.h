// Says once what a group's steps take, and what they were predicted to take.
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
  // A line for each group that has measured something since it was asked last, such as
  // "run-1  group 0  a step takes 41 ms, 30 ms predicted (-27%); compute: layers took ...".
  std::vector<std::string> New(const v1::WatchUpdate& update);

 private:
  // Generation and step of what was said last, by run and group.
  std::map<std::pair<std::string, uint32_t>, std::pair<uint32_t, double>> said_;
};

}  // namespace cadre
