#include "worker/transport/handshake.h"

#include <glog/logging.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

namespace cadre {

Tag MakeTag(const SecretKey& key, absl::string_view message) {
  Tag tag;
  const auto* bytes = reinterpret_cast<const uint8_t*>(message.data());
  // Fails only if the library has no SHA-256 or no memory.
  CHECK(HMAC(EVP_sha256(), key.data(), key.size(), bytes, message.size(), tag.data(), nullptr) !=
        nullptr);
  return tag;
}

bool AreEqual(const Tag& a, const Tag& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace cadre
