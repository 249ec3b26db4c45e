#include "base/rpc/identity.h"

#include <gmock/gmock.h>
#include <grpc/grpc_security_constants.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

struct EmptyIterator : grpc::AuthPropertyIterator {
  EmptyIterator() = default;
};

// What TLS reports about a peer whose certificate has these SPIFFE URIs.
class FakeAuthContext final : public grpc::AuthContext {
 public:
  explicit FakeAuthContext(std::vector<std::string> uris) : uris_(std::move(uris)) {}

  bool IsPeerAuthenticated() const override { return !uris_.empty(); }
  std::vector<grpc::string_ref> GetPeerIdentity() const override { return {}; }
  std::string GetPeerIdentityPropertyName() const override { return ""; }
  std::vector<grpc::string_ref> FindPropertyValues(const std::string& name) const override {
    if (name != GRPC_PEER_SPIFFE_ID_PROPERTY_NAME) return {};
    return {uris_.begin(), uris_.end()};
  }
  grpc::AuthPropertyIterator begin() const override { return EmptyIterator(); }
  grpc::AuthPropertyIterator end() const override { return EmptyIterator(); }
  void AddProperty(const std::string&, const grpc::string_ref&) override {}
  bool SetPeerIdentityPropertyName(const std::string&) override { return false; }

 private:
  const std::vector<std::string> uris_;
};

TEST(PeerTest, EveryRoleHasAUri) {
  for (const auto& [name, role] :
       std::map<std::string, Role>{{"operator", Role::kOperator},
                                   {"viewer", Role::kViewer},
                                   {"worker", Role::kWorker},
                                   {"aggregator", Role::kAggregator},
                                   {"coordinator", Role::kCoordinator}}) {
    const auto identity =
        ParseSpiffeId(absl::StrCat("spiffe://example.org/cadre/", name, "/a-1.b_2"));
    ASSERT_TRUE(identity.ok()) << identity.status();
    EXPECT_EQ(*identity, (Identity{role, "a-1.b_2", "example.org"}));
    EXPECT_EQ(RoleName(role), name);
  }
}

TEST(PeerTest, OtherUrisAreRefusedWithTheReason) {
  const std::string name_of_64(64, 'a');
  for (const auto& [uri, reason] : std::map<std::string, std::string>{
           {"", "scheme"},
           {"https://d/cadre/worker/a", "scheme"},
           {"SPIFFE://d/cadre/worker/a", "scheme"},
           {"spiffe://d", "three parts"},
           {"spiffe://d/cadre/worker", "three parts"},
           {"spiffe://d/cadre/worker/a/", "three parts"},
           {"spiffe://d/cadre/worker/a/b", "three parts"},
           {"spiffe:///cadre/worker/a", "trust domain"},
           {"spiffe://D/cadre/worker/a", "trust domain"},
           {"spiffe://user@d/cadre/worker/a", "trust domain"},
           {"spiffe://d:7000/cadre/worker/a", "trust domain"},
           {"spiffe://d/other/worker/a", "/cadre"},
           {"spiffe://d/cadre/root/a", "role"},
           {"spiffe://d/cadre/Worker/a", "role"},
           {"spiffe://d/cadre//a", "role"},
           {"spiffe://d/cadre/worker/", "name"},
           {"spiffe://d/cadre/worker/A", "name"},
           {"spiffe://d/cadre/worker/a%2fb", "name"},
           {"spiffe://d/cadre/worker/a?b", "name"},
           {"spiffe://d/cadre/worker/a#b", "name"},
           {"spiffe://d/cadre/worker/" + name_of_64, "name"},
           {std::string("spiffe://d/cadre/worker/a\0b", 27), "name"},
           {"spiffe://d/cadre/worker/" + std::string(4096, 'a'), "more than 2048"}}) {
    const auto identity = ParseSpiffeId(uri);
    EXPECT_EQ(identity.status().code(), absl::StatusCode::kInvalidArgument) << uri;
    EXPECT_THAT(std::string(identity.status().message()), HasSubstr(reason)) << uri;
  }
}

TEST(PeerTest, ErrorsQuoteControlCharactersEscaped) {
  const auto identity = ParseSpiffeId("spiffe://d/cadre/worker/\x1b[31m\n");
  EXPECT_THAT(std::string(identity.status().message()), HasSubstr("\\x1b[31m\\n"));
}

// An accepted text is exactly the URI of the identity that was read from it.
TEST(PeerTest, MutatedUrisAreRefusedOrReadExactly) {
  std::mt19937_64 random(7);
  int accepted = 0;
  for (int i = 0; i < 100'000; ++i) {
    std::string uri = "spiffe://example.org/cadre/aggregator/aggregator-0";
    for (uint64_t change = random() % 3; change-- > 0;) {
      const size_t at = random() % uri.size();
      switch (random() % 3) {
        case 0:
          uri[at] = static_cast<char>(random());
          break;
        case 1:
          uri.erase(at, 1 + random() % 8);
          break;
        default:
          uri.insert(at, uri.substr(random() % uri.size(), random() % 8));
      }
    }
    const auto identity = ParseSpiffeId(uri);
    if (!identity.ok()) continue;
    ++accepted;
    EXPECT_EQ(uri, absl::StrCat("spiffe://", identity->trust_domain, "/cadre/",
                                RoleName(identity->role), "/", identity->name));
  }
  EXPECT_GT(accepted, 1000);
}

TEST(PeerTest, IdentityComesFromTheCertificate) {
  const auto identity = PeerIdentity(FakeAuthContext({"spiffe://d/cadre/viewer/ann"}));
  ASSERT_TRUE(identity.ok()) << identity.status();
  EXPECT_EQ(*identity, (Identity{Role::kViewer, "ann", "d"}));
}

TEST(PeerTest, PeersWithoutExactlyOneIdentityAreUnauthenticated) {
  for (const std::vector<std::string>& uris :
       {std::vector<std::string>{},
        {"spiffe://d/cadre/viewer/ann", "spiffe://d/cadre/operator/ann"},
        {"spiffe://cluster.local/ns/train/sa/worker"}}) {
    EXPECT_EQ(PeerIdentity(FakeAuthContext(uris)).status().code(),
              absl::StatusCode::kUnauthenticated);
  }
}

}  // namespace
}  // namespace cadre
