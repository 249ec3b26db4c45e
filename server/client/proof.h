// Proofs that the sender of a header or of a pull request is a rank of the generation that it
// names: tags that only the holders of the generation's key can make.
//
// A tag covers the whole message, so none of its fields can be changed. The name of the message is
// part of it, so a proof for Stage is none for Pull. A message that is sent again has a valid
// proof: both calls are idempotent, and with TLS nobody else can record a message.
//
// Thread-safe (pure functions).
#pragma once

#include <string>

#include "base/secret_key.h"
#include "proto/cadre/v1/rounds.pb.h"

namespace cadre {

// `nonce` must be different for every message.
void Sign(const SecretKey& key, const std::string& nonce, v1::ContributionHeader& header);
void Sign(const SecretKey& key, const std::string& nonce, v1::PullRequest& request);
bool IsSigned(const SecretKey& key, const v1::ContributionHeader& header);
bool IsSigned(const SecretKey& key, const v1::PullRequest& request);

}  // namespace cadre
