// Collects the actions of one call of Machine::Handle or Settle.
//
// Thread-compatible.
//
// Guarantees: Take returns erasures, then records (the newest of each key, in key order), then all
// other actions in the order in which they were added.
#pragma once

#include <google/protobuf/message_lite.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/events/events.h"

namespace cadre {

class Outbox {
 public:
  void Put(const std::string& key, const google::protobuf::MessageLite& record);
  // Erases the record, and discards an earlier Put of it.
  void EraseOne(const std::string& key);
  // The same for all records whose keys begin with the prefix.
  void EraseBelow(const std::string& prefix);

  // All messages carry this epoch.
  void SetEpoch(uint64_t epoch) { epoch_ = epoch; }
  void SendTo(ConnectionId connection, v1::CoordinatorMessage message);
  void End(ConnectionId connection, absl::Status status);
  void Reply(Replied replied) { others_.emplace_back(std::move(replied)); }
  void Add(SearchPlans search) { others_.emplace_back(std::move(search)); }
  void Add(PredictStep predict) { others_.emplace_back(std::move(predict)); }
  void Add(BeginAgain begin) { others_.emplace_back(begin); }

  std::vector<Action> Take();

 private:
  std::vector<Store::Op> erasures_;
  std::map<std::string, std::string> records_;
  std::vector<Action> others_;
  uint64_t epoch_ = 0;
};

}  // namespace cadre
