// A small HTTP server for read-only pages: GET and HEAD, one thread, limited connections and
// time-outs.
//
// The Host header must name an address of the server, so that a page of another site cannot read
// answers through a name that resolves to this host (DNS rebinding).
//
//   auto server = HttpServer::Start({.listen = "127.0.0.1:0"}, [](const HttpRequest& request) {
//     return HttpResponse{.body = "hello\n"};
//   });
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/http/event_stream.h"

namespace cadre {

struct HttpRequest {
  // Decoded, without the query.
  std::string path;
  std::map<std::string, std::string> query;
  // Values of the headers If-None-Match and Last-Event-ID; empty: absent.
  std::string if_none_match;
  std::string last_event_id;
  bool accepts_gzip = false;

  // A whole number in the query; 0 if it is absent or malformed.
  uint64_t Number(const std::string& name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  std::map<std::string, std::string> headers;
  // Instead of a body: the events of this stream after the number, until the caller disconnects.
  // Borrowed; must outlive the server.
  EventStream* stream = nullptr;
  uint64_t after = 0;
};

struct HttpServerOptions {
  // host:port; port 0 selects a free port.
  std::string listen;
  // Further hosts, without ports, that a Host header may name, such as that of a proxy. "*": any.
  std::vector<std::string> hosts;
  // Limit of all connections; those of one client address are limited to three quarters of it.
  unsigned max_connections = 128;
};

class HttpServer {
 public:
  // Called on the server's thread, so it must not wait long.
  using Handler = std::function<HttpResponse(const HttpRequest&)>;

  // Errors: InvalidArgument for a malformed address; AlreadyExists if the port is in use.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(HttpServerOptions options,
                                                           Handler handler);
  // Ends all connections. Streams must have been closed.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // The host of `listen` with the selected port.
  const std::string& address() const { return address_; }

 private:
  struct Impl;
  HttpServer(HttpServerOptions options, Handler handler);

  std::unique_ptr<Impl> impl_;
  std::string address_;
};

}  // namespace cadre
