// Cuts the schedules of all members into rounds, for transports that move whole messages: all
// messages of a round go at the same time, then what arrived is added, then the next round begins.
//
// A message's round is the same at both ends, so rounds cannot wait for one another in a circle,
// however many of them a member has no part in. It is the earliest in which what the message waits
// for, at either end, is over. What a schedule lets happen byte by byte, a sum that overwrites what
// is being sent, is one round: sums arrive beside the data.
//
// Thread-safe (pure function).
#pragma once

#include <span>
#include <vector>

#include "worker/comm/schedule.h"

namespace cadre {

// Of each step of each member, counted from 0. Requires: the schedules of all members of one
// collective, in index order.
// Guarantees: rounds of the messages between one pair in one direction do not fall; with messages
// of a round in any order, every member ends with what its schedule says.
std::vector<std::vector<int>> RoundsOf(std::span<const Schedule> schedules);

}  // namespace cadre
