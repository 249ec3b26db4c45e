// The methods of the coordinator's services besides Join. A method posts an event to the loop
// (Request) or reads the state machine (Query); a method that is only declared in the protocol is
// answered with Unimplemented.
#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/peer_text.h"
#include "base/protocol.h"
#include "base/status.h"
#include "coordinator/service/service.h"
#include "coordinator/store/keys.h"

namespace cadre {
namespace {

using Context = grpc::CallbackServerContext;
using Reactor = grpc::ServerUnaryReactor;

// On the thread of the call: the loop is not delayed by specs that it would refuse.
absl::Status CheckSubmit(const Machine::Options& options, const v1::SubmitRequest& request) {
  if (!AreCompatible(request.protocol(), kProtocol)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the command has protocol ", request.protocol(), ", the coordinator ",
                     kProtocol, "; only adjacent protocols work together"));
  }
  const std::string& name = request.spec().name();
  if (RunNumber(name) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("name: is '", name, "', which has the form of a run's id; give another one"));
  }
  return CheckSpec(options, request.spec());
}

absl::Status CheckStop(const v1::StopRequest& request) {
  if (request.reason().size() <= kMaxReason) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("reason: has more than the ", kMaxReason, " bytes that are allowed"));
}

}  // namespace

class CoordinatorService::Runs final : public v1::Runs::CallbackService {
 public:
  explicit Runs(CoordinatorService& service) : service_(service) {}

  Reactor* Submit(Context*, const v1::SubmitRequest* request, v1::SubmitReply* reply) override {
    const Fill fill = [reply](const Replied& replied) {
      reply->set_run(replied.run);
      reply->set_ended(replied.ended);
    };
    const auto make = [&](RequestId id) {
      std::random_device entropy;
      return SubmitRun{.request = id,
                       .spec = request->spec(),
                       .lineage_seed = (uint64_t{entropy()} << 32) | entropy(),
                       .join_existing = request->join_existing(),
                       .join_ended = request->join_ended()};
    };
    return service_.Request(fill, make,
                            [&] { return CheckSubmit(service_.options_.machine, *request); });
  }

  Reactor* Stop(Context*, const v1::StopRequest* request, v1::StopReply*) override {
    const auto make = [&](RequestId id) {
      return StopRun{id, request->run(), ShortReason(request->reason())};
    };
    return service_.Request(nullptr, make, [&] { return CheckStop(*request); });
  }

  Reactor* Delete(Context*, const v1::DeleteRequest* request, v1::DeleteReply*) override {
    return service_.Request(nullptr, [&](RequestId id) { return DeleteRun{id, request->run()}; });
  }

  Reactor* Scale(Context*, const v1::ScaleRequest* request, v1::ScaleReply*) override {
    return service_.Request(nullptr, [&](RequestId id) {
      return ScaleRun{id, request->run(), request->groups()};
    });
  }

  Reactor* Resume(Context*, const v1::ResumeRequest* request, v1::ResumeReply*) override {
    return service_.Request(nullptr, [&](RequestId id) { return ResumeRun{id, request->run()}; });
  }

  Reactor* Rollback(Context*, const v1::RollbackRequest* request, v1::RollbackReply*) override {
    return service_.Request(nullptr, [&](RequestId id) {
      return RollBackRun{.request = id,
                         .run = request->run(),
                         .version = request->version(),
                         .leave_out = {request->leave_out().begin(), request->leave_out().end()}};
    });
  }

  Reactor* Adopt(Context*, const v1::AdoptRequest* request, v1::AdoptReply* reply) override {
    return service_.Request([reply](const Replied& replied) { *reply = replied.adopted; },
                            [&](RequestId id) {
                              return AdoptRuns{id, request->run()};
                            });
  }

  Reactor* List(Context* context, const v1::ListRequest*, v1::ListReply* reply) override {
    return service_.Query(*context, [reply](const Machine& machine, absl::Time now) {
      *reply = machine.List(now);
      return absl::OkStatus();
    });
  }

  grpc::ServerWriteReactor<v1::BackupChunk>* Backup(Context* context,
                                                    const v1::BackupRequest*) override {
    return service_.Backup(context);
  }

 private:
  CoordinatorService& service_;
};

class CoordinatorService::Status final : public v1::Status::CallbackService {
 public:
  explicit Status(CoordinatorService& service) : service_(service) {}

  Reactor* Get(Context* context, const v1::StatusRequest* request,
               v1::StatusReply* reply) override {
    const std::optional<uint64_t> left =
        request->page_token().empty() ? service_.credentials_.SecondsLeft() : std::nullopt;
    const auto read = [=, request = *request](const Machine& machine,
                                              absl::Time now) -> absl::Status {
      CADRE_ASSIGN_OR_RETURN(*reply, machine.Status(now, request));
      auto& counters = *reply->mutable_counters();
      if (left.has_value()) counters["certificate_seconds_left"] = *left;
      return absl::OkStatus();
    };
    return service_.Query(*context, read);
  }

  Reactor* History(Context* context, const v1::HistoryRequest* request,
                   v1::HistoryReply* reply) override {
    const auto read = [=, request = *request](const Machine& machine, absl::Time) -> absl::Status {
      CADRE_ASSIGN_OR_RETURN(*reply, machine.History(request));
      return absl::OkStatus();
    };
    return service_.Query(*context, read);
  }

  Reactor* Locate(Context* context, const v1::LocateRequest* request,
                  v1::LocateReply* reply) override {
    const auto read = [=, request = *request](const Machine& machine, absl::Time) -> absl::Status {
      CADRE_ASSIGN_OR_RETURN(*reply, machine.Locate(request));
      return absl::OkStatus();
    };
    return service_.Query(*context, read);
  }

  Reactor* Events(Context* context, const v1::EventsRequest* request,
                  v1::EventsReply* reply) override {
    return service_.Query(*context, [=, request = *request](const Machine& machine, absl::Time) {
      *reply = machine.Events(request);
      return absl::OkStatus();
    });
  }

  Reactor* Trace(Context*, const v1::TraceRequest* request, v1::TraceReply* reply) override {
    const auto post = [&](RequestId id) {
      return service_.Post(TraceGroup{.request = id,
                                      .run = request->run(),
                                      .group = request->group(),
                                      .steps = request->steps()});
    };
    return service_.Begin([reply](const Replied& replied) { *reply = replied.trace; }, post,
                          /*traces=*/true);
  }

  grpc::ServerWriteReactor<v1::WatchUpdate>* Watch(Context* context,
                                                   const v1::WatchRequest* request) override {
    return service_.Watch(context, request->run());
  }

 private:
  CoordinatorService& service_;
};

class CoordinatorService::Members final : public v1::Members::CallbackService {
 public:
  explicit Members(CoordinatorService& service) : service_(service) {}

  Reactor* Cordon(Context*, const v1::CordonRequest* request, v1::CordonReply* reply) override {
    const Fill fill = [reply](const Replied& replied) {
      reply->mutable_members()->Add(replied.members.begin(), replied.members.end());
    };
    return service_.Request(fill, [&](RequestId id) {
      return CordonMembers{.request = id,
                           .member = request->member(),
                           .undo = request->undo(),
                           .drain = request->drain(),
                           .drain_seconds = request->drain_seconds()};
    });
  }

 private:
  CoordinatorService& service_;
};

std::vector<std::unique_ptr<grpc::Service>> CoordinatorService::MakeCallServices(
    CoordinatorService& service) {
  std::vector<std::unique_ptr<grpc::Service>> services;
  services.push_back(std::make_unique<Runs>(service));
  services.push_back(std::make_unique<Status>(service));
  services.push_back(std::make_unique<Members>(service));
  return services;
}

}  // namespace cadre
