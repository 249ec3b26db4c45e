#include "base/http/metrics_server.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace cadre {

absl::StatusOr<std::unique_ptr<HttpServer>> StartMetricsServer(MetricsServerOptions options) {
  HttpServerOptions server{.listen = options.listen, .hosts = {"*"}, .max_connections = 32};
  return HttpServer::Start(
      std::move(server), [options = std::move(options)](const HttpRequest& request) {
        if (request.path == "/healthz") return HttpResponse{.body = "ok\n"};
        const absl::Status ready = options.ready();
        if (request.path == "/readyz") {
          if (ready.ok()) return HttpResponse{.body = "ready\n"};
          return HttpResponse{.status = 503, .body = absl::StrCat(ready.message(), "\n")};
        }
        if (request.path != "/metrics") {
          return HttpResponse{.status = 404, .body = "/metrics, /healthz or /readyz\n"};
        }
        Metrics metrics;
        metrics.AddProcess(options.version);
        metrics.Gauge("cadre_ready", "Whether the process can do its work.", ready.ok() ? 1 : 0);
        options.collect(metrics);
        return HttpResponse{.content_type = "text/plain; version=0.0.4; charset=utf-8",
                            .body = metrics.Text()};
      });
}

}  // namespace cadre
