// A read-only web page for the runs, groups and members of a coordinator, with its JSON interface:
//
//   /                               the page; its other files are next to it
//   /api/v1/overview                coordinator, runs, groups, numbers of members, counters
//   /api/v1/members                 workers and aggregators
//   /api/v1/runs/RUN/groups         the groups of a run with their plans
//   /api/v1/runs/RUN/history?after= commits and evaluations (v1::HistoryReply)
//   /api/v1/events?after=&run=      events of the cluster (v1::EventsReply)
//   /api/v1/stream                  server-sent events: overview, history, events
//
// All viewers share one stream, for which the event loop is asked at most kUpdatesPerSecond times a
// second, and not at all without viewers. Other answers are kept for a short time, so the load
// of the loop does not grow with the number of viewers.
//
// The page needs no other host. It has no button: changes are made by `cadre`, with its access
// rules.
//
// Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/http/event_stream.h"
#include "base/http/http_server.h"
#include "coordinator/service/service.h"

namespace cadre {

struct DashboardOptions {
  // host:port. There is neither TLS nor authentication, so other addresses than loopback need
  // `insecure`.
  std::string listen;
  bool insecure = false;
  // Further names under which a browser may reach it, such as that of a proxy.
  std::vector<std::string> hosts;
};

class Dashboard {
 public:
  // The service is borrowed; it must have been started, and outlive the dashboard.
  // Errors: InvalidArgument for an address beyond loopback; those of HttpServer::Start.
  static absl::StatusOr<std::unique_ptr<Dashboard>> Start(const DashboardOptions& options,
                                                          CoordinatorService& service);
  ~Dashboard();

  const std::string& address() const { return server_->address(); }

 private:
  // A file in both encodings.
  struct File {
    std::string content_type;
    std::string bytes;
    std::string zipped;
    std::string tag;
  };
  struct Kept {
    absl::Time until;
    std::string body;
  };

  explicit Dashboard(CoordinatorService& service);

  HttpResponse Answer(const HttpRequest& request);
  HttpResponse AnswerFile(const HttpRequest& request, const File& file) const;
  // The JSON for a path of the interface; NotFound for another path.
  absl::StatusOr<std::string> Api(const HttpRequest& request);
  absl::StatusOr<std::string> Compute(const HttpRequest& request);
  // The thread that publishes updates.
  void Publish();
  void PublishOnce();
  bool Stopping() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; }

  CoordinatorService& service_;
  std::map<std::string, File> files_;
  EventStream stream_;
  // Used by the server's thread only: answers that are still valid.
  std::map<std::string, Kept> kept_;
  size_t kept_bytes_ = 0;

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  // Used by the publishing thread only: what viewers have.
  std::map<std::string, uint64_t> revisions_;
  std::map<std::string, uint64_t> histories_;
  uint64_t events_ = 0;
  absl::Time published_ = absl::InfinitePast();
  absl::Time alive_ = absl::InfinitePast();
  bool watched_ = false;

  std::thread publisher_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace cadre
