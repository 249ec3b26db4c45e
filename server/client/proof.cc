#include "server/client/proof.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

// The lengths make the parts unambiguous. Messages without maps have one serialization: fields in
// the order of their numbers.
template <typename Message>
Tag TagOf(const SecretKey& key, Message message) {
  const std::string nonce = message.proof().nonce();
  message.clear_proof();
  const std::string name = message.GetTypeName();
  return MakeTag(key, absl::StrCat(name.size(), ":", name, nonce.size(), ":", nonce,
                                   message.SerializeAsString()));
}

template <typename Message>
void SignMessage(const SecretKey& key, const std::string& nonce, Message& message) {
  message.mutable_proof()->set_nonce(nonce);
  const Tag tag = TagOf(key, message);
  message.mutable_proof()->set_tag(tag.data(), tag.size());
}

template <typename Message>
bool IsMessageSigned(const SecretKey& key, const Message& message) {
  Tag tag;
  if (message.proof().tag().size() != tag.size()) return false;
  std::copy(message.proof().tag().begin(), message.proof().tag().end(), tag.begin());
  return AreEqual(tag, TagOf(key, message));
}

}  // namespace

void Sign(const SecretKey& key, const std::string& nonce, v1::ContributionHeader& header) {
  SignMessage(key, nonce, header);
}

void Sign(const SecretKey& key, const std::string& nonce, v1::PullRequest& request) {
  SignMessage(key, nonce, request);
}

bool IsSigned(const SecretKey& key, const v1::ContributionHeader& header) {
  return IsMessageSigned(key, header);
}

bool IsSigned(const SecretKey& key, const v1::PullRequest& request) {
  return IsMessageSigned(key, request);
}

}  // namespace cadre
