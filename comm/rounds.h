// Divides the schedules of all members into rounds, for transports that move whole messages: all
// messages of a round are concurrent, then received addends are added, then the next round begins.
// (Round: a set of messages that are sent concurrently; not a round of averaging.)
//
// The round of a message is the same at both ends, so rounds cannot deadlock even if a member takes
// no part in some of them. It is the earliest round after the rounds of the message's dependencies
// at both ends.
// A sum that overwrites the data of a concurrent send may share the send's round, because addends
// are received into separate memory.
//
// Thread-safe (pure function).
#pragma once

#include <span>
#include <vector>

#include "comm/schedule.h"

namespace cadre {

// The round of each step of each member, counted from 0. Requires: the schedules of all members of
// one collective, in index order.
// Guarantees: rounds of the messages between one pair in one direction do not decrease; messages of
// a round may be executed in any order with the result of the schedule.
std::vector<std::vector<int>> RoundsOf(std::span<const Schedule> schedules);

}  // namespace cadre
