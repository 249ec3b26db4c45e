// Who may call what: every method of every service, called over real connections by every kind of
// caller. The methods come from the descriptors, so a new one is tested without a change here.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/dynamic_message.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/protocol.h"
#include "base/rpc/certificate_folder.h"
#include "base/rpc/credentials.h"
#include "base/rpc/daemon.h"
#include "base/rpc/grpc_channel.h"
#include "coordinator/service/service.h"
#include "coordinator/store/sqlite_store.h"
#include "proto/method_access.h"
#include "server/client/proof.h"
#include "server/client/rounds_client.h"
#include "server/service.h"
#include "tests/base/expect.h"
#include "tests/base/temporary_folder.h"
#include "tests/server/testing.h"

namespace cadre::testing {
namespace {

using grpc::StatusCode;

// An aggregator has two runs: a worker of either knows the key of its own.
constexpr char kAggregator[] = "a-0";
const SecretKey kKey = {1};
const SecretKey kOtherKey = {2};

// The callers before kRawOperator fail in the handshake, which any mistake of their client would do
// as well; kRawOperator uses the same client with a good certificate.
enum class Caller {
  kPlaintext,
  kNoCertificate,
  kOtherAuthority,
  kExpired,
  kRawOperator,
  kViewer,
  kOperator,
  kWorker,
  kWorkerOfAnotherRun,
  kAggregator,
  kAggregatorOfAnotherName,
};
constexpr Caller kCallers[] = {Caller::kPlaintext,
                               Caller::kNoCertificate,
                               Caller::kOtherAuthority,
                               Caller::kExpired,
                               Caller::kRawOperator,
                               Caller::kViewer,
                               Caller::kOperator,
                               Caller::kWorker,
                               Caller::kWorkerOfAnotherRun,
                               Caller::kAggregator,
                               Caller::kAggregatorOfAnotherName};
constexpr const char* kCallerNames[] = {"plaintext",
                                        "no certificate",
                                        "another authority",
                                        "expired",
                                        "operator by the client of the callers above",
                                        "viewer",
                                        "operator",
                                        "worker",
                                        "worker of another run",
                                        "aggregator",
                                        "aggregator of another name"};

bool IsAuthenticated(Caller caller) { return caller >= Caller::kRawOperator; }

// What a program needs that loads the last version of a run.
bool ReadsVersions(const std::string& path) {
  return path == "/cadre.v1.Status/Locate" || path == "/cadre.v1.Rounds/Read";
}

bool HasRoleFor(Caller caller, v1::Access access, const std::string& path) {
  switch (caller) {
    case Caller::kViewer:
      return access == v1::VIEWER;
    case Caller::kRawOperator:
    case Caller::kOperator:
      return access == v1::VIEWER || access == v1::OPERATOR;
    case Caller::kWorker:
    case Caller::kWorkerOfAnotherRun:
      return access == v1::MEMBER || access == v1::WORKER || ReadsVersions(path);
    case Caller::kAggregator:
    case Caller::kAggregatorOfAnotherName:
      return access == v1::MEMBER || access == v1::AGGREGATOR;
    default:
      return false;
  }
}

// The result of a call of a caller with the role for it. Requests name a run that does not exist.
StatusCode CodeForRole(const std::string& path, Caller caller) {
  const static std::map<std::string, StatusCode> codes = {
      // The protocol is missing.
      {"/cadre.v1.Runs/Submit", StatusCode::FAILED_PRECONDITION},
      {"/cadre.v1.Runs/List", StatusCode::OK},
      // The store of this coordinator is in memory.
      {"/cadre.v1.Runs/Backup", StatusCode::UNIMPLEMENTED},
      {"/cadre.v1.Status/Events", StatusCode::OK},
      {"/cadre.v1.Membership/Join", StatusCode::OK},
      {"/cadre.v1.Rounds/Stage", StatusCode::OK},
      {"/cadre.v1.Rounds/Pull", StatusCode::OK},
      {"/cadre.v1.Rounds/Read", StatusCode::OK},
      {"/cadre.v1.Rounds/Copy", StatusCode::OK}};
  // Aggregators copy from any other.
  const bool named = path != "/cadre.v1.Rounds/Copy";
  if (caller == Caller::kAggregatorOfAnotherName && named) return StatusCode::FAILED_PRECONDITION;
  const bool rounds = path.find("Rounds") != std::string::npos;
  if (caller == Caller::kWorkerOfAnotherRun && rounds && !ReadsVersions(path)) {
    return StatusCode::PERMISSION_DENIED;
  }
  const auto found = codes.find(path);
  return found == codes.end() ? StatusCode::NOT_FOUND : found->second;
}

StatusCode Expected(const std::string& path, v1::Access access, Caller caller) {
  // The handshake fails.
  if (!IsAuthenticated(caller)) return StatusCode::UNAVAILABLE;
  if (!HasRoleFor(caller, access, path)) return StatusCode::PERMISSION_DENIED;
  return CodeForRole(path, caller);
}

class AccessTest : public ::testing::Test {
 protected:
  AccessTest() {
    EXPECT_THAT(WriteAuthority(folder_ / "ca", {}), IsOk());
    EXPECT_THAT(WriteAuthority(folder_ / "other-ca", {}), IsOk());
    Issue("coordinator", {.role = Role::kCoordinator, .name = "main", .ips = {"127.0.0.1"}});
    Issue("server", {.role = Role::kAggregator, .name = kAggregator, .ips = {"127.0.0.1"}});
    Issue("viewer", {.role = Role::kViewer, .name = "v"});
    Issue("operator", {.role = Role::kOperator, .name = "o"});
    Issue("worker", {.role = Role::kWorker, .name = "w"});
    Issue("other-worker", {.role = Role::kWorker, .name = "x"});
    Issue("other-aggregator", {.role = Role::kAggregator, .name = "a-1"});
    Issue("expired", {.role = Role::kOperator,
                      .name = "o",
                      .validity = {.begin = absl::Now() - absl::Hours(2),
                                   .end = absl::Now() - absl::Hours(1)}});
    Issue("foreign", {.role = Role::kOperator, .name = "o"}, "other-ca");
    StartCoordinator();
    StartAggregator();
  }

  ~AccessTest() override {
    service_->Drain();
    coordinator_->Drain(absl::ZeroDuration());
    aggregator_->Drain(absl::ZeroDuration());
  }

  void Issue(const std::string& name, const CredentialsOptions& options,
             const std::string& authority = "ca") {
    EXPECT_THAT(WriteCredentials(folder_ / authority, options, folder_ / name), IsOk());
  }

  Credentials Load(const std::string& name) {
    auto credentials = Credentials::FromFolder(folder_ / name);
    EXPECT_THAT(credentials, IsOk());
    return *std::move(credentials);
  }

  void StartCoordinator() {
    auto store = SqliteStore::Open({.path = folder_ / "store.db"});
    ASSERT_THAT(store, IsOk());
    store_ = *std::move(store);
    Loop::Options options;
    options.machine.protocol = kProtocol;
    service_ = std::make_unique<CoordinatorService>(std::move(options), Load("coordinator"));
    ASSERT_THAT(service_->Start(store_.get()), IsOk());
    auto daemon = Daemon::Start({.credentials = Load("coordinator")}, service_->services());
    ASSERT_THAT(daemon, IsOk());
    coordinator_ = *std::move(daemon);
  }

  void StartAggregator() {
    auto host = ShardHost::Open(
        {.data_dir = folder_ / "data", .name = kAggregator, .counters = &counters_});
    ASSERT_THAT(host, IsOk());
    host_ = *std::move(host);
    for (const auto& [run, key] : {std::pair(run_, kKey), std::pair(other_run_, kOtherKey)}) {
      v1::OpenRun open = run.Open();
      (*open.mutable_keys())[0] = KeyBytes(key);
      ASSERT_THAT(host_->OpenRun(open), IsOk());
    }
    rounds_ = std::make_unique<RoundsService>(RoundsServiceOptions(), *host_, counters_);
    auto daemon = Daemon::Start({.credentials = Load("server")}, {rounds_.get()});
    ASSERT_THAT(daemon, IsOk());
    aggregator_ = *std::move(daemon);
  }

  // TLS without the checks of Credentials, which refuse their own bad certificates.
  std::shared_ptr<grpc::ChannelCredentials> RawTls(const std::string& name) {
    grpc::SslCredentialsOptions options{.pem_root_certs = *ReadFile(folder_ / "ca/ca.crt")};
    if (!name.empty()) {
      options.pem_private_key = *ReadFile(folder_ / name + "/tls.key");
      options.pem_cert_chain = *ReadFile(folder_ / name + "/tls.crt");
    }
    return grpc::SslCredentials(options);
  }

  std::shared_ptr<grpc::Channel> Connect(Caller caller, bool rounds) {
    const std::string& address = rounds ? aggregator_->address() : coordinator_->address();
    const auto with = [&](const std::string& name) {
      return MakeChannel(address, Plane::kControl, Load(name),
                         {.role = rounds ? Role::kAggregator : Role::kCoordinator});
    };
    switch (caller) {
      case Caller::kPlaintext:
        return MakeChannel(address, Plane::kControl);
      case Caller::kNoCertificate:
        return grpc::CreateChannel(address, RawTls(""));
      case Caller::kOtherAuthority:
        return grpc::CreateChannel(address, RawTls("foreign"));
      case Caller::kExpired:
        return grpc::CreateChannel(address, RawTls("expired"));
      case Caller::kRawOperator:
        return grpc::CreateChannel(address, RawTls("operator"));
      case Caller::kViewer:
        return with("viewer");
      case Caller::kOperator:
        return with("operator");
      case Caller::kWorker:
        return with("worker");
      case Caller::kWorkerOfAnotherRun:
        return with("other-worker");
      case Caller::kAggregator:
        return with("server");
      case Caller::kAggregatorOfAnotherName:
        return with("other-aggregator");
    }
    return nullptr;
  }

  // The messages of a call, as if the caller were permitted; a caller of another name or run claims
  // to be the one that has the name or run.
  std::vector<std::string> Requests(const google::protobuf::MethodDescriptor& method,
                                    Caller caller) {
    const SecretKey& key = caller == Caller::kWorkerOfAnotherRun ? kOtherKey : kKey;
    if (method.full_name() == "cadre.v1.Membership.Join") {
      const bool aggregator =
          caller == Caller::kAggregator || caller == Caller::kAggregatorOfAnotherName;
      v1::MemberMessage message;
      v1::Hello& hello = *message.mutable_hello();
      hello.set_protocol(kProtocol);
      hello.set_role(aggregator ? v1::ROLE_AGGREGATOR : v1::ROLE_WORKER);
      hello.set_name(aggregator                              ? kAggregator
                     : caller == Caller::kWorkerOfAnotherRun ? "x-1"
                                                             : "w-1");
      hello.set_incarnation(absl::StrCat("process-", static_cast<int>(caller)));
      hello.set_address("127.0.0.1:1");
      return {message.SerializeAsString()};
    }
    if (method.full_name() == "cadre.v1.Rounds.Stage") {
      v1::StageRequest header;
      *header.mutable_header() = Header(run_, {}, 0, 15, 15);
      Sign(key, "nonce", *header.mutable_header());
      v1::StageRequest chunk;
      *chunk.mutable_chunk() = MakeChunk(0, Values(1, 15));
      return {header.SerializeAsString(), chunk.SerializeAsString()};
    }
    const bool read = method.full_name() == "cadre.v1.Rounds.Read";
    if (read || method.full_name() == "cadre.v1.Rounds.Pull") {
      v1::PullRequest request = PullOf(run_, 0, 0, 15);
      if (!read) Sign(key, "nonce", request);
      return {request.SerializeAsString()};
    }
    if (method.full_name() == "cadre.v1.Rounds.Copy") {
      v1::CopyRequest request;
      request.set_protocol(kProtocol);
      request.set_run(run_.run);
      request.set_lineage(run_.lineage);
      request.set_file(v1::CopyRequest::VALUES);
      return {request.SerializeAsString()};
    }
    // A run that does not exist.
    google::protobuf::DynamicMessageFactory factory;
    const std::unique_ptr<google::protobuf::Message> message(
        factory.GetPrototype(method.input_type())->New());
    const google::protobuf::FieldDescriptor* const run =
        method.input_type()->FindFieldByName("run");
    if (run != nullptr) message->GetReflection()->SetString(message.get(), run, "run-9");
    return {message->SerializeAsString()};
  }

  // Sends the messages and reads all answers.
  static grpc::Status Call(const std::shared_ptr<grpc::Channel>& channel, const std::string& path,
                           const std::vector<std::string>& requests) {
    grpc::GenericStub stub(channel);
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(30)));
    grpc::CompletionQueue queue;
    const auto done = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    const auto call = stub.PrepareCall(&context, path, &queue);
    call->StartCall(nullptr);
    bool sent = done();
    grpc::ByteBuffer answer;
    for (const std::string& request : requests) {
      if (!sent) break;
      const grpc::Slice slice(request);
      call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
      sent = done();
      // Every message but the last is answered before the next one is sent.
      if (sent && &request != &requests.back()) {
        call->Read(&answer, nullptr);
        sent = done();
      }
    }
    if (sent) {
      // A member is answered before it ends its stream.
      if (absl::StrContains(path, "Join")) {
        call->Read(&answer, nullptr);
        done();
      }
      call->WritesDone(nullptr);
      done();
    }
    do {
      call->Read(&answer, nullptr);
    } while (done());
    grpc::Status status;
    call->Finish(&status, nullptr);
    done();
    return status;
  }

  const TemporaryFolder folder_;
  const SmallRun run_;
  const SmallRun other_run_{.run = "run-2", .lineage = "lineage-b"};
  Counters counters_;
  std::unique_ptr<SqliteStore> store_;
  std::unique_ptr<CoordinatorService> service_;
  std::unique_ptr<Daemon> coordinator_;
  std::unique_ptr<ShardHost> host_;
  std::unique_ptr<RoundsService> rounds_;
  std::unique_ptr<Daemon> aggregator_;
};

TEST_F(AccessTest, EveryMethodByEveryCaller) {
  int cells = 0;
  for (const Caller caller : kCallers) {
    const std::shared_ptr<grpc::Channel> channels[] = {Connect(caller, false),
                                                       Connect(caller, true)};
    for (const auto& [path, access] : MethodAccess()) {
      const std::vector<std::string> parts = absl::StrSplit(path, '/');
      const auto* const method =
          google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(
              absl::StrCat(parts[1], ".", parts[2]));
      ASSERT_NE(method, nullptr) << path;
      const bool rounds = method->service()->full_name() == "cadre.v1.Rounds";
      const grpc::Status status = Call(channels[rounds], path, Requests(*method, caller));
      EXPECT_EQ(status.error_code(), Expected(path, access, caller))
          << path << " by " << kCallerNames[static_cast<int>(caller)] << ": "
          << status.error_message();
      ++cells;
    }
  }
  RecordProperty("cells", cells);
}

TEST_F(AccessTest, StatusShowsTheValidityOfTheCertificate) {
  const auto stub = v1::Status::NewStub(Connect(Caller::kViewer, false));
  const uint64_t day = 24 * 3600;
  for (const uint64_t days : {2, 30}) {
    Issue("coordinator",
          {.role = Role::kCoordinator,
           .name = "main",
           .ips = {"127.0.0.1"},
           .validity = {.begin = absl::Now(), .end = absl::Now() + absl::Hours(24 * days)},
           .replace = true});
    grpc::ClientContext context;
    v1::StatusReply reply;
    ASSERT_TRUE(stub->Get(&context, {}, &reply).ok());
    ASSERT_TRUE(reply.counters().contains("certificate_seconds_left"));
    EXPECT_LE(reply.counters().at("certificate_seconds_left"), days * day);
    EXPECT_GT(reply.counters().at("certificate_seconds_left"), (days - 1) * day);
  }
}

// A server without the object that checks callers before a service does.
TEST_F(AccessTest, MemberWithoutCertificateIsRefusedByTheServiceItself) {
  grpc::SslServerCredentialsOptions options;
  options.pem_key_cert_pairs.push_back(
      {*ReadFile(folder_ / "coordinator/tls.key"), *ReadFile(folder_ / "coordinator/tls.crt")});
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(options), &port);
  for (grpc::Service* service : service_->services()) builder.RegisterService(service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const auto channel = grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), RawTls(""));
  const auto& join = *google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(
      "cadre.v1.Membership.Join");
  EXPECT_EQ(
      Call(channel, "/cadre.v1.Membership/Join", Requests(join, Caller::kWorker)).error_code(),
      StatusCode::UNAUTHENTICATED);
  server->Shutdown();
}

// Another name than that of the certificate, and a role that the certificate does not have.
TEST_F(AccessTest, HelloIsRefusedWithTheReason) {
  const auto stub = v1::Membership::NewStub(Connect(Caller::kWorker, false));
  for (const auto& [role, name] : {std::pair(v1::ROLE_WORKER, "x-1"), {v1::ROLE_AGGREGATOR, "w"}}) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(30)));
    const auto stream = stub->Join(&context);
    v1::MemberMessage message;
    v1::Hello& hello = *message.mutable_hello();
    hello.set_protocol(kProtocol);
    hello.set_role(role);
    hello.set_name(name);
    hello.set_incarnation("process");
    hello.set_address("127.0.0.1:1");
    stream->Write(message);
    v1::CoordinatorMessage answer;
    ASSERT_TRUE(stream->Read(&answer));
    EXPECT_EQ(answer.refused().refusal(), v1::REFUSAL_WRONG_IDENTITY);
    EXPECT_THAT(answer.refused().reason(),
                ::testing::HasSubstr("the certificate is that of worker w, not of"));
    EXPECT_FALSE(stream->Read(&answer));
    EXPECT_EQ(stream->Finish().error_code(), StatusCode::FAILED_PRECONDITION);
  }
}

// A rank connects only to the aggregator that the coordinator named.
TEST_F(AccessTest, RanksCheckTheNameOfAnAggregator) {
  for (const std::string expected : {kAggregator, "a-1"}) {
    RoundsClient client([&, this] { return ShardLocation(aggregator_->address(), expected); },
                        {.silence = absl::Milliseconds(500)}, nullptr, kKey, Load("worker"));
    std::vector<float> values(15);
    Traffic traffic;
    const absl::Status pulled = client.Pull(PullOf(run_, 0, 0, 15), values, &traffic);
    EXPECT_EQ(pulled.ok(), expected == kAggregator) << expected << ": " << pulled;
  }
}

}  // namespace
}  // namespace cadre::testing
