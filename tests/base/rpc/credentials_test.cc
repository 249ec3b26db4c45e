// Tests folders of credentials, and which peers servers and channels accept.
#include "base/rpc/credentials.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/certificate.h"
#include "base/file.h"
#include "base/rpc/certificate_folder.h"
#include "base/rpc/daemon.h"
#include "base/rpc/grpc_channel.h"
#include "proto/cadre/v1/control.grpc.pb.h"
#include "tests/base/expect.h"
#include "tests/base/rpc/health_check.h"
#include "tests/base/temporary_folder.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(20);

// Replies with the identity of the caller as the message of an error.
class WhoAmI final : public v1::Runs::Service {
 public:
  grpc::Status Stop(grpc::ServerContext* context, const v1::StopRequest*, v1::StopReply*) override {
    const auto identity = PeerIdentity(*context->auth_context());
    if (!identity.ok()) return {grpc::StatusCode::ABORTED, "none"};
    return {grpc::StatusCode::ABORTED, absl::StrCat(RoleName(identity->role), "/", identity->name)};
  }
};

class CredentialsTest : public ::testing::Test {
 protected:
  CredentialsTest() {
    EXPECT_THAT(WriteAuthority(folder_ / "ca", {}), IsOk());
    Issue("coordinator",
          {.role = Role::kCoordinator, .name = "main", .dns = {"localhost"}, .ips = {"127.0.0.1"}});
    Issue("worker", {.role = Role::kOperator, .name = "w1"});
  }

  void Issue(const std::string& folder, CredentialsOptions options, const std::string& ca = "ca") {
    EXPECT_THAT(WriteCredentials(folder_ / ca, options, folder_ / folder), IsOk());
  }

  Credentials Load(const std::string& folder) {
    auto loaded = Credentials::FromFolder(folder_ / folder);
    EXPECT_THAT(loaded, IsOk());
    return loaded.ok() ? *loaded : Credentials::Insecure();
  }

  std::string Read(const std::string& path) { return *ReadFile(folder_ / path); }

  void Start(const std::string& folder, absl::Duration age = absl::Hours(1)) {
    auto daemon =
        Daemon::Start({.credentials = Load(folder), .max_connection_age = age}, {&service_});
    ASSERT_THAT(daemon, IsOk());
    daemon_ = *std::move(daemon);
  }

  // One call on a channel; the message of its status if the service has answered.
  std::string Call(grpc::Channel& channel, absl::Duration patience = kPatience) {
    const std::shared_ptr<grpc::Channel> borrowed(std::shared_ptr<void>(), &channel);
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + patience));
    v1::StopReply reply;
    const grpc::Status status = v1::Runs::NewStub(borrowed)->Stop(&context, {}, &reply);
    if (status.error_code() == grpc::StatusCode::ABORTED) return status.error_message();
    return absl::StrCat("code ", status.error_code());
  }
  std::string Call(const Credentials& credentials, const ServerIdentity& expected = {}) {
    return Call(*MakeChannel(daemon_->address(), Plane::kControl, credentials, expected));
  }
  // Code of a health check of the whole server, whose request is empty.
  grpc::StatusCode Serving(grpc::Channel& channel) {
    const std::shared_ptr<grpc::Channel> borrowed(std::shared_ptr<void>(), &channel);
    grpc::GenericStub stub(borrowed);
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    grpc::CompletionQueue queue;
    const grpc::Slice nothing("");
    auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check",
                                      grpc::ByteBuffer(&nothing, 1), &queue);
    call->StartCall();
    grpc::ByteBuffer reply;
    grpc::Status status;
    call->Finish(&reply, &status, &queue);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return status.error_code();
  }
  // A client that is not Cadre's: it checks the host name of the server, and no identity.
  std::string CallWith(const grpc::SslCredentialsOptions& options) {
    return Call(*grpc::CreateChannel(absl::StrCat("localhost:", daemon_->port()),
                                     grpc::SslCredentials(options)));
  }

  const TemporaryFolder folder_;
  WhoAmI service_;
  std::unique_ptr<Daemon> daemon_;
};

constexpr char kUnavailable[] = "code 14";

TEST_F(CredentialsTest, CallerIsIdentified) {
  Start("coordinator");
  EXPECT_EQ(Call(Load("worker")), "operator/w1");
}

TEST_F(CredentialsTest, OtherClientsCheckTheHostName) {
  Start("coordinator");
  EXPECT_EQ(CallWith({.pem_root_certs = Read("ca/ca.crt"),
                      .pem_private_key = Read("worker/tls.key"),
                      .pem_cert_chain = Read("worker/tls.crt")}),
            "operator/w1");
}

TEST_F(CredentialsTest, CallerWithoutCertificateIsRefused) {
  Start("coordinator");
  EXPECT_EQ(Call(Credentials::Insecure()), kUnavailable);
  EXPECT_EQ(CallWith({.pem_root_certs = Read("ca/ca.crt")}), kUnavailable);
}

// Any process that reaches the port can cause failed handshakes.
TEST_F(CredentialsTest, FailedHandshakesDoNotFillTheLog) {
  Start("coordinator");
  const absl::Time start = absl::Now();
  ::testing::internal::CaptureStderr();
  // Longer than the interval of the limit, which began with a line of another test.
  while (absl::Now() < start + absl::Milliseconds(1500)) {
    const int caller = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {.sin_family = AF_INET,
                           .sin_port = htons(daemon_->port()),
                           .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    ASSERT_EQ(connect(caller, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    constexpr absl::string_view kPlaintext = "GET / HTTP/1.1\r\n\r\n";
    EXPECT_EQ(write(caller, kPlaintext.data(), kPlaintext.size()), std::ssize(kPlaintext));
    // Until the server closes the connection.
    char received[64];
    while (read(caller, received, sizeof(received)) > 0) {
    }
    close(caller);
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  const int64_t lines = std::count(log.begin(), log.end(), '\n');
  EXPECT_THAT(log, HasSubstr("Handshake failed"));
  EXPECT_LE(lines, 3 + absl::ToInt64Seconds(absl::Now() - start)) << log;
}

TEST_F(CredentialsTest, OtherAuthorityIsRefused) {
  EXPECT_THAT(WriteAuthority(folder_ / "other_ca", {}), IsOk());
  Issue("stranger", {.role = Role::kCoordinator, .name = "main"}, "other_ca");
  Start("coordinator");
  EXPECT_EQ(Call(Load("stranger")), kUnavailable);
  // Now only the caller's certificate is from the other authority.
  folder_.Write("stranger/ca.crt", Read("other_ca/ca.crt") + Read("ca/ca.crt"));
  EXPECT_EQ(Call(Load("stranger")), kUnavailable);
}

TEST_F(CredentialsTest, OtherTrustDomainIsRefused) {
  EXPECT_THAT(WriteAuthority(folder_ / "other_ca", {.trust_domain = "elsewhere"}), IsOk());
  Issue("stranger", {.role = Role::kOperator, .name = "w1"}, "other_ca");
  const std::string both = Read("ca/ca.crt") + Read("other_ca/ca.crt");
  folder_.Write("stranger/ca.crt", both);
  folder_.Write("coordinator/ca.crt", both);
  Start("coordinator");
  EXPECT_EQ(Call(Load("stranger")), kUnavailable);
  EXPECT_EQ(Call(Load("worker")), "operator/w1");
}

TEST_F(CredentialsTest, ExpiredCertificateIsRefused) {
  Start("coordinator");
  const absl::Time now = absl::Now();
  Issue("late", {.role = Role::kOperator,
                 .name = "late",
                 .validity = {.begin = now - absl::Hours(2), .end = now - absl::Seconds(1)}});
  EXPECT_THAT(Credentials::FromFolder(folder_ / "late"),
              AllOf(IsError(kInvalidArgument, folder_ / "late/tls.crt"),
                    IsError(kInvalidArgument, "expired")));
  // The server checks it as well, not only the program that loads it.
  EXPECT_EQ(CallWith({.pem_root_certs = Read("ca/ca.crt"),
                      .pem_private_key = Read("late/tls.key"),
                      .pem_cert_chain = Read("late/tls.crt")}),
            kUnavailable);
}

// A resumed TLS session does not verify the certificate again.
TEST_F(CredentialsTest, ExpiredCertificateIsRefusedInAResumedSession) {
  Start("coordinator");
  const absl::Time end = absl::Now() + absl::Seconds(8);
  Issue("short", {.role = Role::kOperator,
                  .name = "short",
                  .validity = {.begin = end - absl::Hours(1), .end = end}});
  const std::string output = folder_ / "output";
  // The server sends its settings to a client that it accepts.
  const auto accepted = [&](const std::string& session) {
    EXPECT_GE(system(absl::StrCat("timeout 3 openssl s_client -quiet -connect ", daemon_->address(),
                                  " -tls1_3 -cert ", folder_ / "short/tls.crt", " -key ",
                                  folder_ / "short/tls.key", " -CAfile ", folder_ / "short/ca.crt",
                                  " -alpn h2 ", session, " > ", output, " < /dev/null 2> /dev/null")
                         .c_str()),
              0);
    return !Read("output").empty();
  };
  const std::string session = folder_ / "session";
  ASSERT_TRUE(accepted("-sess_out " + session));
  EXPECT_TRUE(accepted("-sess_in " + session));
  absl::SleepFor(end + absl::Seconds(1) - absl::Now());
  EXPECT_FALSE(accepted("")) << "without the session";
  EXPECT_FALSE(accepted("-sess_in " + session));
}

TEST_F(CredentialsTest, ServerOfOtherRoleOrNameIsRefused) {
  Issue("aggregator", {.role = Role::kAggregator, .name = "a1"});
  Start("aggregator");
  const Credentials worker = Load("worker");
  EXPECT_EQ(Call(worker, {.role = Role::kCoordinator}), kUnavailable);
  EXPECT_EQ(Call(worker, {.role = Role::kAggregator, .name = "a2"}), kUnavailable);
  EXPECT_EQ(Call(worker, {.role = Role::kAggregator, .name = "a1"}), "operator/w1");
  EXPECT_EQ(Call(worker, {.role = Role::kAggregator}), "operator/w1");
}

// Clients cannot negotiate an older version, because they share no cipher suite with the server.
TEST_F(CredentialsTest, Tls12IsRefused) {
  Start("coordinator");
  const auto handshake = [&](const std::string& version) {
    return system(absl::StrCat("openssl s_client -connect ", daemon_->address(), " ", version,
                               " -cert ", folder_ / "worker/tls.crt", " -key ",
                               folder_ / "worker/tls.key", " -CAfile ", folder_ / "worker/ca.crt",
                               " -alpn h2 -verify_return_error < /dev/null > /dev/null 2>&1")
                      .c_str());
  };
  EXPECT_EQ(handshake("-tls1_3"), 0);
  EXPECT_NE(handshake("-tls1_2"), 0);
}

TEST_F(CredentialsTest, ReplacedCertificateIsUsedWithoutRestart) {
  Start("coordinator", /*age=*/absl::Milliseconds(200));
  const auto channel =
      MakeChannel(daemon_->address(), Plane::kControl, Load("worker"), ServerIdentity());
  ASSERT_EQ(Call(*channel), "operator/w1");
  Issue("worker", {.role = Role::kOperator, .name = "w2", .replace = true});
  const absl::Time deadline = absl::Now() + kPatience;
  std::string caller;
  while (caller != "operator/w2" && absl::Now() < deadline) {
    caller = Call(*channel);
    // Calls do not fail while the connection is replaced.
    ASSERT_THAT(caller, HasSubstr("operator/"));
    absl::SleepFor(absl::Milliseconds(20));
  }
  EXPECT_EQ(caller, "operator/w2");
}

// Health checks come from probes without a certificate.
TEST_F(CredentialsTest, HealthPortOffersHealthChecksOnly) {
  Start("coordinator");
  // The port of a server that has ended is free.
  const int port = daemon_->port();
  daemon_.reset();
  auto daemon =
      Daemon::Start({.credentials = Load("coordinator"), .health_port = port}, {&service_});
  ASSERT_THAT(daemon, IsOk());
  const std::string address = absl::StrCat("127.0.0.1:", port);
  const auto channel = MakeChannel(address, Plane::kControl);
  EXPECT_EQ(Call(*channel), absl::StrCat("code ", grpc::StatusCode::UNIMPLEMENTED));
  EXPECT_EQ(Serving(*channel), grpc::StatusCode::OK);
  EXPECT_EQ(Serving(*MakeChannel((*daemon)->address(), Plane::kControl)),
            grpc::StatusCode::UNAVAILABLE);
  (*daemon)->SetServing("readiness", false);
  EXPECT_FALSE(IsServing(address, "readiness").value());
  (*daemon)->SetServing("readiness", true);
  EXPECT_TRUE(IsServing(address, "readiness").value());
}

TEST_F(CredentialsTest, FilesThatDoNotMatchAreNamed) {
  const auto expect = [&](const std::string& folder, const std::string& file,
                          const std::string& reason) {
    EXPECT_THAT(Credentials::FromFolder(folder_ / folder),
                AllOf(IsError(kInvalidArgument, folder_ / (folder + "/" + file)),
                      IsError(kInvalidArgument, reason)));
  };
  Issue("a", {.role = Role::kOperator, .name = "a"});
  folder_.Write("a/tls.key", Read("worker/tls.key"));
  expect("a", "tls.key", "not the key of the certificate");
  Issue("b", {.role = Role::kOperator, .name = "b"});
  EXPECT_THAT(WriteAuthority(folder_ / "other_ca", {}), IsOk());
  folder_.Write("b/ca.crt", Read("other_ca/ca.crt"));
  expect("b", "tls.crt", "not valid with the authorities in");
  folder_.Write("b/ca.crt", "garbage");
  expect("b", "ca.crt", "not a list of certificates");
  folder_.Write("b/tls.key", Read("b/tls.crt"));
  folder_.Write("b/ca.crt", Read("ca/ca.crt"));
  expect("b", "tls.key", "not a private key");
  std::filesystem::remove(folder_ / "b/tls.crt");
  EXPECT_THAT(Credentials::FromFolder(folder_ / "b"), IsError(kNotFound, "b/tls.crt"));
}

TEST_F(CredentialsTest, CertificateWithoutIdentityIsRefused) {
  const KeyPair authority = {.key = Read("ca/ca.key"), .certificate = Read("ca/ca.crt")};
  const auto pair = IssueCertificate(authority, {.common_name = "x",
                                                 .uri = "https://example.org/x",
                                                 .begin = absl::Now() - absl::Hours(1),
                                                 .end = absl::Now() + absl::Hours(1)});
  ASSERT_THAT(pair, IsOk());
  folder_.Write("worker/tls.crt", pair->certificate);
  folder_.Write("worker/tls.key", pair->key);
  EXPECT_THAT(Credentials::FromFolder(folder_ / "worker"),
              IsError(kInvalidArgument, "the scheme is not spiffe"));
}

TEST_F(CredentialsTest, FlagsNameExactlyOneSource) {
  EXPECT_THAT(Credentials::FromFlags("", false), AllOf(IsError(kInvalidArgument, "--tls=DIR"),
                                                       IsError(kInvalidArgument, "--insecure")));
  EXPECT_THAT(Credentials::FromFlags(folder_ / "worker", true),
              IsError(kInvalidArgument, "both --tls and --insecure"));
  EXPECT_FALSE(Credentials::FromFlags("", true)->secure());
  const auto loaded = Credentials::FromFlags(folder_ / "worker", false, Role::kOperator);
  ASSERT_THAT(loaded, IsOk());
  EXPECT_EQ(loaded->identity(), (Identity{Role::kOperator, "w1", "cadre"}));
  EXPECT_THAT(Credentials::FromFlags(folder_ / "worker", false, Role::kCoordinator),
              IsError(kInvalidArgument, "for role operator, not coordinator"));
}

TEST_F(CredentialsTest, FoldersArePrivateAndNotOverwritten) {
  const auto mode = [&](const std::string& path) {
    struct stat status = {};
    EXPECT_EQ(stat((folder_ / path).c_str(), &status), 0) << path;
    return status.st_mode & 0777;
  };
  for (const char* folder : {"ca", "worker"}) EXPECT_EQ(mode(folder), 0700u);
  for (const char* file : {"ca/ca.key", "ca/ca.crt", "worker/tls.key", "worker/tls.crt"}) {
    EXPECT_EQ(mode(file), 0600u) << file;
  }
  const std::string before = Read("ca/ca.key");
  EXPECT_THAT(WriteAuthority(folder_ / "ca", {}),
              IsError(absl::StatusCode::kAlreadyExists, folder_ / "ca"));
  EXPECT_EQ(Read("ca/ca.key"), before);
  EXPECT_THAT(WriteAuthority(folder_ / "ca", {.replace = true}), IsOk());
  EXPECT_NE(Read("ca/ca.key"), before);
  // No draft is left.
  EXPECT_EQ(folder_.Entries(), 3);
}

// --replace must not delete anything else, such as the authority or a home folder.
TEST_F(CredentialsTest, OnlyCredentialsAreReplaced) {
  EXPECT_THAT(WriteCredentials(folder_ / "ca", {.name = "x", .replace = true}, folder_ / "ca"),
              IsError(absl::StatusCode::kFailedPrecondition, "ca.key"));
  EXPECT_THAT(WriteAuthority(folder_ / "worker", {.replace = true}),
              IsError(absl::StatusCode::kFailedPrecondition, "tls."));
  ASSERT_THAT(WriteFileAtomically(folder_ / "worker/thesis", "text"), IsOk());
  EXPECT_THAT(WriteCredentials(folder_ / "ca", {.name = "x", .replace = true}, folder_ / "worker"),
              IsError(absl::StatusCode::kFailedPrecondition, folder_ / "worker/thesis"));
  EXPECT_EQ(Read("worker/thesis"), "text");
}

TEST_F(CredentialsTest, NamesAreChecked) {
  EXPECT_THAT(WriteAuthority(folder_ / "x", {.trust_domain = "a b"}),
              IsError(kInvalidArgument, "trust domain"));
  EXPECT_THAT(
      WriteCredentials(folder_ / "ca", {.role = Role::kOperator, .name = "A/b"}, folder_ / "x"),
      IsError(kInvalidArgument, "identity"));
  EXPECT_THAT(
      WriteCredentials(folder_ / "ca", {.role = Role::kOperator, .name = "a", .ips = {"1.2.3"}},
                       folder_ / "x"),
      IsError(kInvalidArgument, "'1.2.3' is not a valid IP address"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "x"));
}

}  // namespace
}  // namespace cadre
