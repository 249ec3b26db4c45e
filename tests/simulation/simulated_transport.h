// The simulated connections between the ranks of one generation of a group: messages with delays,
// in the order in which they were sent, which are not delivered while a host is cut off. A rank
// that leaves, or whose process ends, fails the others, unless its host is lost: then they wait.
//
// Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/transport/transport.h"
#include "proto/cadre/v1/membership.pb.h"
#include "tests/simulation/simulated_thread.h"
#include "tests/simulation/world.h"

namespace cadre::simulation {

class GroupLinks : public std::enable_shared_from_this<GroupLinks> {
 public:
  GroupLinks(World& world, size_t ranks) : world_(world), ranks_(ranks) {}

  // Connects the rank; waits for the others. Fails after `timeout`, naming those that are missing,
  // or if the session is cancelled.
  absl::StatusOr<std::unique_ptr<Transport>> Connect(uint32_t rank, const HostConditions& host,
                                                     Threads& threads, absl::Duration timeout,
                                                     const std::function<bool()>& cancelled);
  // The rank's process has ended. If its host is lost, its peers do not notice.
  void OnProcessEnded(uint32_t rank, bool host_lost);

 private:
  friend class SimulatedTransport;

  struct Message {
    CallTag tag;
    std::vector<std::byte> bytes;
  };
  struct Rank {
    const HostConditions* host = nullptr;
    // Null once the rank has left.
    Threads* threads = nullptr;
    absl::Status status;
    // By sender and channel.
    std::map<std::pair<uint32_t, int>, std::deque<Message>> received;
    // Ranks that have left without an error.
    std::vector<bool> left;
  };

  bool HasJoined(uint32_t rank) const { return joined_.contains(rank); }
  bool IsCut(uint32_t from, uint32_t to) const;
  void Send(uint32_t from, uint32_t to, int channel, Message message);
  void Deliver(uint32_t from, uint32_t to, int channel);
  // The rank fails, and its peers learn of it later.
  void Fail(uint32_t rank, const absl::Status& status);
  void FailLater(uint32_t rank, const absl::Status& status);
  void Leave(uint32_t rank);

  World& world_;
  const size_t ranks_;
  std::map<uint32_t, Rank> joined_;
  // Messages in transit, by sender, receiver and channel.
  std::map<std::tuple<uint32_t, uint32_t, int>, std::deque<Message>> sent_;
};

// The links of all generations.
class Fabrics {
 public:
  explicit Fabrics(World& world) : world_(world) {}
  std::shared_ptr<GroupLinks> Of(const v1::RankSlot& place, size_t ranks);

 private:
  World& world_;
  std::map<std::tuple<std::string, uint32_t, uint32_t>, std::weak_ptr<GroupLinks>> links_;
};

}  // namespace cadre::simulation
