#include "base/secret_key.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cstdlib>

namespace cadre {
namespace {

Tag Hmac(absl::string_view key, absl::string_view message) {
  Tag tag;
  const auto* bytes = reinterpret_cast<const uint8_t*>(message.data());
  // Fails only if the library has no SHA-256 or no memory; no tag must be used then.
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes, message.size(),
           tag.data(), nullptr) == nullptr) {
    std::abort();
  }
  return tag;
}

}  // namespace

std::optional<SecretKey> ParseSecretKey(absl::string_view bytes) {
  SecretKey key;
  if (bytes.size() != key.size()) return std::nullopt;
  std::copy(bytes.begin(), bytes.end(), key.begin());
  return key;
}

std::string KeyBytes(const SecretKey& key) { return {key.begin(), key.end()}; }

Tag MakeTag(const SecretKey& key, absl::string_view message) {
  return Hmac(KeyBytes(key), message);
}

bool AreEqual(const Tag& a, const Tag& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Tag NewChallenge() {
  Tag challenge;
  // Fails only if the system has no source of random numbers; no challenge must be used then.
  if (RAND_bytes(challenge.data(), static_cast<int>(challenge.size())) != 1) std::abort();
  return challenge;
}

SecretKey DeriveKey(absl::string_view secret, absl::string_view use) {
  const Tag tag = Hmac(secret, use);
  SecretKey key;
  std::copy_n(tag.begin(), key.size(), key.begin());
  return key;
}

}  // namespace cadre
