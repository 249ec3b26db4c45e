// TLS to the database: what the address demands of the server's certificate, on a real server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/certificate.h"
#include "coordinator/store/leader_row.h"
#include "coordinator/store/postgres_store.h"
#include "tests/base/expect.h"
#include "tests/base/temporary_folder.h"
#include "tests/coordinator/store/postgres_server.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::PostgresServer;

// A busy host may answer late.
constexpr absl::Duration kTlsPatience = absl::Minutes(1);

KeyPair NewAuthority() {
  const auto authority = MakeAuthority({.common_name = "authority of the database",
                                        .begin = absl::Now() - absl::Hours(1),
                                        .end = absl::Now() + absl::Hours(1)});
  EXPECT_THAT(authority, IsOk());
  return authority.value_or(KeyPair());
}

// For the server at this address. It has no DNS name, so that only the address can match.
KeyPair CertificateFor(const std::string& address, const KeyPair& authority) {
  const auto certificate = IssueCertificate(authority, {.common_name = "database",
                                                        .ips = {address},
                                                        .begin = absl::Now() - absl::Hours(1),
                                                        .end = absl::Now() + absl::Hours(1)});
  EXPECT_THAT(certificate, IsOk());
  return certificate.value_or(KeyPair());
}

class PostgresTlsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!PostgresServer::IsInstalled()) GTEST_SKIP() << "PostgreSQL 15 is not installed";
    server_ = std::make_unique<PostgresServer>();
  }
  // The address of the database for a client that trusts this authority.
  std::string UrlWith(const KeyPair& authority) const {
    return absl::StrCat(server_->Url(), "?sslmode=verify-full&sslrootcert=",
                        folder_.Write("authority.crt", authority.certificate));
  }
  // Tries again for as long as the database might be reached later.
  static absl::StatusOr<std::unique_ptr<PostgresStore>> Open(const std::string& url) {
    const absl::Time until = absl::Now() + kTlsPatience;
    const PostgresStore::Options options = {
        .url = url, .instance = "one", .address = "one:7000", .patience = kTlsPatience};
    auto store = PostgresStore::Open(options);
    while (absl::IsUnavailable(store.status()) && absl::Now() < until) {
      store = PostgresStore::Open(options);
    }
    return store;
  }
  // Expects a refusal that is not tried again, with the database and without the password.
  static void ExpectRefused(const std::string& url, const std::string& reason,
                            const std::string& remedy) {
    const auto store = PostgresStore::Open({.url = url, .instance = "one", .address = "one:7000"});
    EXPECT_THAT(store, IsError(absl::StatusCode::kFailedPrecondition, reason));
    EXPECT_THAT(store.status().message(),
                AllOf(HasSubstr("database cadre at 127.0.0.1:"), HasSubstr(remedy),
                      Not(HasSubstr(PostgresServer::kPassword))));
  }

  const TemporaryFolder folder_;
  std::unique_ptr<PostgresServer> server_;
};

TEST_F(PostgresTlsTest, VerifiedServerIsUsed) {
  const KeyPair authority = NewAuthority();
  server_->StartWithTls(CertificateFor("127.0.0.1", authority));
  const std::string url = UrlWith(authority);
  const auto store = Open(url);
  ASSERT_THAT(store, IsOk());
  EXPECT_THAT((*store)->BeginEpoch(0, absl::Now()), IsOk());
  EXPECT_THAT((*store)->Commit({{Store::Op::Kind::kPut, "key", "value"}}), IsOk());
  LeaderRow row(url, "one");
  EXPECT_THAT(row.Beat(), IsOk());
  EXPECT_EQ(server_->Psql("SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) "
                          "WHERE application_name = 'cadre-coordinator' AND NOT ssl"),
            "0");
  EXPECT_EQ(server_->Psql("SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) "
                          "WHERE application_name = 'cadre-coordinator' AND ssl"),
            "2");
}

TEST_F(PostgresTlsTest, CertificateOfAnotherAuthorityIsRefused) {
  server_->StartWithTls(CertificateFor("127.0.0.1", NewAuthority()));
  ExpectRefused(UrlWith(NewAuthority()), "certificate verify failed", "sslrootcert");
}

TEST_F(PostgresTlsTest, CertificateOfAnotherHostIsRefused) {
  const KeyPair authority = NewAuthority();
  server_->StartWithTls(CertificateFor("127.0.0.2", authority));
  ExpectRefused(UrlWith(authority), "does not match host name", "sslmode=verify-full");
}

// The first host has no certificate for its name; both are the same server.
TEST_F(PostgresTlsTest, HostThatIsRefusedLeadsToTheNext) {
  const KeyPair authority = NewAuthority();
  server_->StartWithTls(CertificateFor("127.0.0.1", authority));
  const std::string url = UrlWith(authority);
  const std::string host =
      server_->Psql("SELECT '127.0.0.1:' || setting FROM pg_settings WHERE name = 'port'");
  const std::string port(absl::StripPrefix(host, "127.0.0.1:"));
  const auto store =
      Open(absl::StrReplaceAll(url, {{host, absl::StrCat("localhost:", port, ",", host)}}));
  ASSERT_THAT(store, IsOk());
  EXPECT_THAT((*store)->name(), HasSubstr("at 127.0.0.1:"));
  const auto refused = PostgresStore::Open(
      {.url = absl::StrReplaceAll(url, {{host, absl::StrCat("127.0.0.1:1,localhost:", port)}}),
       .instance = "one",
       .address = "one:7000"});
  EXPECT_THAT(refused, IsError(absl::StatusCode::kUnavailable, "does not match host name"))
      << "the first host may be reached later";
}

TEST_F(PostgresTlsTest, ServerWithoutTlsIsRefused) {
  ExpectRefused(UrlWith(NewAuthority()), "server does not support SSL", "ssl = on");
}

TEST_F(PostgresTlsTest, MissingFileOfTheAuthorityIsNamed) {
  server_->StartWithTls(CertificateFor("127.0.0.1", NewAuthority()));
  ExpectRefused(absl::StrCat(server_->Url(), "?sslmode=verify-full&sslrootcert=/absent/ca.crt"),
                "/absent/ca.crt", "set sslrootcert");
}

}  // namespace
}  // namespace cadre
