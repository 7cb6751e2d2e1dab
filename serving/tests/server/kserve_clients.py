"""Calls everything of the KServe SDK's inference clients: HTTP-PORT GRPC-PORT. The server has the model digits."""
import asyncio
import sys

import grpc
import httpx
import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferOutput, InferRequest, InferResponse
from kserve.inference_client import RESTConfig
from kserve.protocol.infer_type import RequestedOutput

HTTP, GRPC = sys.argv[1:3]
IMAGES = (np.arange(3 * 64).reshape(3, 1, 8, 8) % 17).astype(np.float32)


def request(binary, **options):
    image = InferInput("image", list(IMAGES.shape), "FP32")
    image.set_data_from_numpy(IMAGES, binary_data=binary)
    return InferRequest("digits", [image], request_id="7", **options)


def probability(response):
    assert isinstance(response, InferResponse) and response.id == "7" and response.model_name == "digits", response
    output = response.outputs[0]
    assert isinstance(output, InferOutput) and output.name == "probability" and list(output.shape) == [3, 10]
    return np.array(output.as_numpy())


async def over_http():
    base = f"http://127.0.0.1:{HTTP}"
    async with InferenceRESTClient(RESTConfig(protocol="v2", retries=1)) as client:
        assert await client.is_server_live(base) and await client.is_server_ready(base)
        assert await client.is_model_ready(base, "digits")
        assert not await client.is_model_ready(base, "none")
        results = []
        for binary in (False, True):
            for asked in (None, False, True):
                outputs = None if asked is None else [RequestedOutput("probability", {"binary_data": asked})]
                headers = {}
                answer = await client.infer(base, request(binary, request_outputs=outputs), "digits", response_headers=headers)
                assert ("inference-header-content-length" in headers) == bool(asked), headers
                results.append(probability(answer))
        assert all((result == results[0]).all() for result in results)
        raw = {"id": "7", "inputs": [{"name": "image", "shape": [3, 1, 8, 8], "datatype": "FP32", "data": IMAGES.ravel().tolist()}]}
        assert (probability(await client.infer(base, raw, "digits")) == results[0]).all()
        try:
            await client.infer(base, {"inputs": []}, "digits")
        except httpx.HTTPStatusError as error:
            assert error.response.status_code == 400 and "input 'image' of model 'digits' is missing" in str(error)
        else:
            raise AssertionError("a request without inputs was not refused")
        return results[0]


async def over_grpc():
    async with InferenceGRPCClient(f"127.0.0.1:{GRPC}") as client:
        assert await client.is_server_live() and await client.is_server_ready()
        assert await client.is_model_ready("digits")
        assert not await client.is_model_ready("none")
        results = [probability(await client.infer(request(binary))) for binary in (False, True)]
        results.append(probability(await client.infer(request(True), timeout=10)))
        assert all((result == results[0]).all() for result in results)
        wrong = InferRequest("none", request(True).inputs)
        try:
            await client.infer(wrong)
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.NOT_FOUND and "no model 'none'" in error.details(), error
        else:
            raise AssertionError("an unknown model was not refused")
        return results[0]


async def main():
    assert (await over_http() == await over_grpc()).all()
    print("all calls passed")


asyncio.run(main())
