// The methods of the coordinator's services besides Join. A method posts an event to the loop
// (Request) or reads the state machine (Query).
#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/peer_text.h"
#include "base/protocol.h"
#include "base/status.h"
#include "coordinator/service/service.h"
#include "coordinator/store/keys.h"

namespace cadre {
namespace {

// Groups that are left out are listed.
constexpr RequestStream::Limits kRollbackLimits = {.max_memory = 256 << 10};
constexpr RequestStream::Limits kSubmitLimits = {.max_memory = kMaxSubmitMemory, .is_large = true};

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

template <typename Declared>
class CoordinatorService::CallService : public RequestService<Declared> {
 protected:
  explicit CallService(CoordinatorService& service) : service_(service) {}

  template <typename Derived, typename Request, typename Reply>
  void AddUnary(absl::string_view method,
                void (Derived::*handle)(UnaryCall&, const Request&, Reply&),
                const RequestStream::Limits& limits = {}) {
    this->Add(method, [=, this](grpc::CallbackServerContext* context) -> RequestStream* {
      return new UnaryCallOf<Request, Reply>(
          service_.Shared(), limits, context,
          [=, this](UnaryCall& call, const Request& request, Reply& reply) {
            (static_cast<Derived*>(this)->*handle)(call, request, reply);
          });
    });
  }

  CoordinatorService& service_;
};

class CoordinatorService::Runs final : public CallService<v1::Runs> {
 public:
  explicit Runs(CoordinatorService& service) : CallService(service) {
    AddUnary("Submit", &Runs::Submit, kSubmitLimits);
    AddUnary("Stop", &Runs::Stop);
    AddUnary("List", &Runs::List);
    AddUnary("Resume", &Runs::Resume);
    AddUnary("Rollback", &Runs::Rollback, kRollbackLimits);
    AddUnary("Adopt", &Runs::Adopt);
    AddUnary("Scale", &Runs::Scale);
    AddUnary("Delete", &Runs::Delete);
    Add("Backup", [this](auto* context) { return service_.Backup(context); });
  }

 private:
  void Submit(UnaryCall& call, const v1::SubmitRequest& request, v1::SubmitReply& reply) {
    const Fill fill = [&reply](const Replied& replied) {
      reply.set_run(replied.run);
      reply.set_ended(replied.ended);
    };
    const auto make = [&](RequestId id) {
      std::random_device entropy;
      return SubmitRun{.request = id,
                       .spec = request.spec(),
                       .lineage_seed = (uint64_t{entropy()} << 32) | entropy(),
                       .join_existing = request.join_existing(),
                       .join_ended = request.join_ended()};
    };
    service_.Request(call, fill, make,
                     [&] { return CheckSubmit(service_.options_.machine, request); });
  }

  void Stop(UnaryCall& call, const v1::StopRequest& request, v1::StopReply&) {
    const auto make = [&](RequestId id) {
      return StopRun{id, request.run(), ShortReason(request.reason())};
    };
    service_.Request(call, nullptr, make, [&] { return CheckStop(request); });
  }

  void Delete(UnaryCall& call, const v1::DeleteRequest& request, v1::DeleteReply&) {
    service_.Request(call, nullptr, [&](RequestId id) { return DeleteRun{id, request.run()}; });
  }

  void Scale(UnaryCall& call, const v1::ScaleRequest& request, v1::ScaleReply&) {
    service_.Request(call, nullptr, [&](RequestId id) {
      return ScaleRun{id, request.run(), request.groups()};
    });
  }

  void Resume(UnaryCall& call, const v1::ResumeRequest& request, v1::ResumeReply&) {
    service_.Request(call, nullptr, [&](RequestId id) { return ResumeRun{id, request.run()}; });
  }

  void Rollback(UnaryCall& call, const v1::RollbackRequest& request, v1::RollbackReply&) {
    service_.Request(call, nullptr, [&](RequestId id) {
      return RollBackRun{.request = id,
                         .run = request.run(),
                         .version = request.version(),
                         .leave_out = {request.leave_out().begin(), request.leave_out().end()}};
    });
  }

  void Adopt(UnaryCall& call, const v1::AdoptRequest& request, v1::AdoptReply& reply) {
    service_.Request(
        call, [&reply](const Replied& replied) { reply = replied.adopted; },
        [&](RequestId id) {
          return AdoptRuns{id, request.run()};
        });
  }

  void List(UnaryCall& call, const v1::ListRequest&, v1::ListReply& reply) {
    service_.Query(call, [&reply](const Machine& machine, absl::Time now) {
      reply = machine.List(now);
      return absl::OkStatus();
    });
  }
};

class CoordinatorService::Status final : public CallService<v1::Status> {
 public:
  explicit Status(CoordinatorService& service) : CallService(service) {
    AddUnary("Get", &Status::Get);
    AddUnary("History", &Status::History);
    AddUnary("Locate", &Status::Locate);
    AddUnary("Events", &Status::Events);
    AddUnary("Trace", &Status::Trace);
    Add("Watch", [this](auto* context) { return service_.Watch(context); });
  }

 private:
  void Get(UnaryCall& call, const v1::StatusRequest& request, v1::StatusReply& reply) {
    const std::optional<uint64_t> left =
        request.page_token().empty() ? service_.credentials_.SecondsLeft() : std::nullopt;
    const auto read = [&request, &reply, left](const Machine& machine,
                                               absl::Time now) -> absl::Status {
      CADRE_ASSIGN_OR_RETURN(reply, machine.Status(now, request));
      auto& counters = *reply.mutable_counters();
      if (left.has_value()) counters["certificate_seconds_left"] = *left;
      return absl::OkStatus();
    };
    service_.Query(call, read);
  }

  void History(UnaryCall& call, const v1::HistoryRequest& request, v1::HistoryReply& reply) {
    const auto read = [&request, &reply](const Machine& machine, absl::Time) -> absl::Status {
      CADRE_ASSIGN_OR_RETURN(reply, machine.History(request));
      return absl::OkStatus();
    };
    service_.Query(call, read);
  }

  void Locate(UnaryCall& call, const v1::LocateRequest& request, v1::LocateReply& reply) {
    const auto read = [&request, &reply](const Machine& machine, absl::Time) -> absl::Status {
      CADRE_ASSIGN_OR_RETURN(reply, machine.Locate(request));
      return absl::OkStatus();
    };
    service_.Query(call, read);
  }

  void Events(UnaryCall& call, const v1::EventsRequest& request, v1::EventsReply& reply) {
    service_.Query(call, [&request, &reply](const Machine& machine, absl::Time) {
      reply = machine.Events(request);
      return absl::OkStatus();
    });
  }

  void Trace(UnaryCall& call, const v1::TraceRequest& request, v1::TraceReply& reply) {
    const auto post = [&](RequestId id) {
      return service_.Post(TraceGroup{
          .request = id, .run = request.run(), .group = request.group(), .steps = request.steps()});
    };
    service_.Begin(
        call, [&reply](const Replied& replied) { reply = replied.trace; }, post,
        /*traces=*/true);
  }
};

class CoordinatorService::Members final : public CallService<v1::Members> {
 public:
  explicit Members(CoordinatorService& service) : CallService(service) {
    AddUnary("Cordon", &Members::Cordon);
  }

 private:
  void Cordon(UnaryCall& call, const v1::CordonRequest& request, v1::CordonReply& reply) {
    const Fill fill = [&reply](const Replied& replied) {
      reply.mutable_members()->Add(replied.members.begin(), replied.members.end());
      reply.mutable_sole_models()->Add(replied.sole_models.begin(), replied.sole_models.end());
    };
    service_.Request(call, fill, [&](RequestId id) {
      return CordonMembers{.request = id,
                           .member = request.member(),
                           .undo = request.undo(),
                           .drain = request.drain(),
                           .drain_seconds = request.drain_seconds()};
    });
  }
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
