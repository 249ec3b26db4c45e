// Secret keys, and tags that prove the knowledge of one: HMAC-SHA256.
//
// Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace cadre {

using SecretKey = std::array<uint8_t, 16>;
using Tag = std::array<uint8_t, 32>;

// The key with these bytes; nothing if their number is wrong.
std::optional<SecretKey> ParseSecretKey(absl::string_view bytes);
std::string KeyBytes(const SecretKey& key);

Tag MakeTag(const SecretKey& key, absl::string_view message);
// The time that it takes does not depend on the tags.
bool AreEqual(const Tag& a, const Tag& b);

// Random: a challenge to which an earlier tag is no answer.
Tag NewChallenge();

// A key for one use, from which neither the secret nor the keys for other uses can be computed.
SecretKey DeriveKey(absl::string_view secret, absl::string_view use);

}  // namespace cadre
