// Plays the schedules of all members in memory, element by element, in any order that the rules of
// a transport allow: the order comes from a seed, and is as unfriendly as that makes it.
//
// Links hold a few elements in each direction. Between two members messages keep their order; an
// element moves once what its step waits for has passed it (see Transfer::after).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/comm/schedule.h"

namespace cadre {

// Numbers that wrap: their sums are exact in any order, and no wrong element goes unnoticed.
using MemberData = std::vector<uint64_t>;

struct Played {
  // Empty if everybody has finished.
  std::string error;
  // Members that have finished.
  std::vector<bool> finished;
};

// `data`, of each member, is sent and overwritten. A member that is `absent` never begins.
Played Play(const std::vector<Schedule>& schedules, std::vector<MemberData>& data, uint64_t seed,
            int absent = -1);

// The longest chain of messages that wait for one another, where a member sends one message at a
// time and receives one at a time, in the order of its schedule.
int64_t LongestChain(const std::vector<Schedule>& schedules);

// Positions of the sends from one member to another and of the receives there, in order; an error
// in words if they do not match.
std::string CheckMessages(const std::vector<Schedule>& schedules);

}  // namespace cadre
