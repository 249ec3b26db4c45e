// Ranks of one group as threads, each with the communicator of the whole group.
#pragma once

#include <functional>

#include "member/agreement.h"
#include "tests/comm/transport/ranks.h"

namespace cadre {

// Calls the body on a thread per rank.
inline void OnGroup(int ranks, const std::function<void(Communicator& group)>& body) {
  const Transports transports = MakeTransports(Wire::kThreads, ranks);
  OnRanks(ranks, [&](int rank) {
    Communicator group = WholeGroup(*transports[rank]);
    body(group);
  });
}

}  // namespace cadre
