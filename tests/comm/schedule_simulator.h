// Executes the schedules of all members in memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/schedule.h"

namespace cadre {

// Integers that wrap around: sums are exact in any order, and a wrong element changes the result.
using MemberData = std::vector<uint64_t>;

struct Played {
  // Empty if all members have finished.
  std::string error;
  // By member.
  std::vector<bool> finished;
};

// Executes the schedules element by element in an order that depends on the seed: any order that
// Transfer::after permits, over links that hold a few elements and keep the order of messages.
// `data`, by member, is the data before and after. Member `absent` executes nothing.
Played Play(const std::vector<Schedule>& schedules, std::vector<MemberData>& data, uint64_t seed,
            int absent = -1);

// Executes the schedules by RoundsOf, as a transport on a device does, with the messages of a round
// in an order that depends on the seed. Also checks the guarantees of RoundsOf.
void PlayRounds(const std::vector<Schedule>& schedules, std::vector<MemberData>& data,
                uint64_t seed);

// Length of the longest chain of dependent messages if a member sends one message at a time and
// receives one at a time, in the order of its schedule.
int64_t LongestChain(const std::vector<Schedule>& schedules);

// Returns an error text if the sends and receives between two members do not match, else "".
std::string CheckMessages(const std::vector<Schedule>& schedules);

}  // namespace cadre
