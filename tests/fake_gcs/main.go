// fake-gcs-server in front of which XML requests are translated: obstore puts objects by the XML API with a header as the
// condition, and the server knows puts by the JSON API with a query parameter. The server decides on the condition.
package main

import (
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/fsouza/fake-gcs-server/fakestorage"
)

func main() {
	server, err := fakestorage.NewServerWithOptions(fakestorage.Options{NoListener: true, PublicHost: os.Args[1]})
	if err != nil {
		panic(err)
	}
	server.CreateBucketWithOpts(fakestorage.CreateBucketOpts{Name: "race"})
	inner := server.HTTPHandler()
	panic(http.ListenAndServe(os.Args[1], http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
		request.Host = os.Args[1] // the server takes other hosts for names of buckets
		bucket, name, isObject := strings.Cut(strings.TrimPrefix(request.URL.Path, "/"), "/")
		if request.Method == http.MethodPut && isObject && request.URL.RawQuery == "" {
			query := url.Values{"uploadType": {"media"}, "name": {name}}
			if condition := request.Header.Get("x-goog-if-generation-match"); condition != "" {
				query.Set("ifGenerationMatch", condition)
			}
			request.Method = http.MethodPost
			request.URL.Path, request.URL.RawPath = "/upload/storage/v1/b/"+bucket+"/o", ""
			request.URL.RawQuery = query.Encode()
			answer.Header().Set("ETag", `"put"`) // the XML API always has one
		}
		inner.ServeHTTP(answer, request)
	})))
}
