// Whether a member is the one that its certificate names.
//
// An aggregator's name is that of its certificate: who has the name receives the weights of its
// shards. Workers usually share a certificate, because they are replicas of one Deployment or Job:
// a worker has the certificate's name, or that name, '-' or '.', and a text of its own, such as
// worker-7 with the certificate of worker.
//
// Thread-safe (pure function).
#pragma once

#include <string>

#include "base/rpc/identity.h"
#include "proto/cadre/v1/membership.pb.h"

namespace cadre {

// Why it is not; empty if it is.
std::string IdentityError(const Identity& certificate, const v1::Hello& hello);

}  // namespace cadre
