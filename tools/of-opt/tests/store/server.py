"""A store that speaks the protocol of S3, with the bucket models. Prints its address, and reads commands: `put KEY FILE`, `delete KEY`,
`list PREFIX`."""
import sys

import boto3
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
store = boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1", aws_access_key_id="test",
                     aws_secret_access_key="test")
store.create_bucket(Bucket="models")
print(f"http://{host}:{port}", flush=True)
for line in sys.stdin:
    match line.split():
        case ["put", key, path]:
            store.upload_file(path, "models", key)
        case ["delete", key]:
            store.delete_object(Bucket="models", Key=key)
        case ["list", prefix]:
            for found in store.list_objects_v2(Bucket="models", Prefix=prefix).get("Contents", []):
                print(found["Key"])
    print("done", flush=True)
